#include "core/wordpiece/word_bpe.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/text/utf8.hpp"

namespace tokpack {

WordBpe::WordBpe(std::span<const std::string> tokens, std::string prefix, std::uint32_t unknown,
                 WordBpeSettings settings)
    : prefix_(std::move(prefix)), unknown_(unknown), settings_(std::move(settings)) {
  for (std::uint32_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids_.emplace(tokens[id], id);
  }
  products_ = ProductTable(std::span<const Merge>(settings_.merges));
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids_.push_back(find({'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'}));
  }
}

std::uint32_t WordBpe::find(const std::string& text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? kNone : found->second;
}

void WordBpe::encode(std::string_view word, std::vector<std::uint32_t>* ids) {
  if (settings_.ignore_merges) {
    if (const std::uint32_t whole = find(std::string(word)); whole != kNone) {
      return ids->push_back(whole);
    }
  }
  add_symbols(word);
  merge();
  for (const Symbol& symbol : symbols_) {
    if (!symbol.is_merged) ids->push_back(symbol.id);
  }
}

// An unknown character is added only when a known one comes, or the next unknown one that is not
// joined to it: bytes do not end a run.
void WordBpe::add_symbols(std::string_view word) {
  initial_.clear();
  bool has_unknown = false;
  std::string text;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t size =
        settings_.of_bytes
            ? 1
            : std::min(word.size() - at, character_size(static_cast<std::uint8_t>(word[at])));
    text.assign(at == 0 ? "" : prefix_).append(word, at, size);
    at += size;
    if (at == word.size()) text += settings_.suffix;
    if (const std::uint32_t id = find(text); id != kNone) {
      if (std::exchange(has_unknown, false)) initial_.push_back(unknown_);
      initial_.push_back(id);
    } else if (!settings_.byte_fallback || !add_bytes(text)) {
      if (has_unknown && !settings_.fuse_unknown) initial_.push_back(unknown_);
      has_unknown = true;
    }
  }
  if (has_unknown) initial_.push_back(unknown_);
}

bool WordBpe::add_bytes(std::string_view text) {
  const auto id_of = [&](char c) { return byte_ids_[static_cast<std::uint8_t>(c)]; };
  if (std::ranges::any_of(text, [&](char c) { return id_of(c) == kNone; })) return false;
  for (const char c : text) initial_.push_back(id_of(c));
  return true;
}

// The lowest rank first, leftmost among equals. A candidate whose symbols have changed still counts
// if what is there now becomes the same, as in the library.
void WordBpe::merge() {
  symbols_.clear();
  const auto count = static_cast<std::uint32_t>(initial_.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols_.push_back({initial_[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1});
  }
  const auto push = [&](std::uint32_t at) {
    const Product found = products_.find(symbols_[at].id, symbols_[symbols_[at].next].id);
    if (found.id != kNone) candidates_.push(std::uint64_t{found.rank} << 32 | at);
  };
  for (std::uint32_t i = 0; i + 1 < count; ++i) push(i);
  while (!candidates_.empty()) {
    const auto at = static_cast<std::uint32_t>(candidates_.top());
    const std::uint32_t id = settings_.merges[candidates_.top() >> 32].product;
    candidates_.pop();
    Symbol& left = symbols_[at];
    if (left.is_merged || left.next == kNone) continue;
    Symbol& right = symbols_[left.next];
    if (products_.find(left.id, right.id).id != id) continue;
    left.id = id;
    right.is_merged = true;
    left.next = right.next;
    if (left.next != kNone) symbols_[left.next].previous = at;
    if (left.previous != kNone) push(left.previous);
    if (left.next != kNone) push(at);
  }
}

}  // namespace tokpack

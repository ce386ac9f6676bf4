#include "core/wordpiece/word_bpe.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

std::uint64_t pair_of(std::uint32_t left, std::uint32_t right) {
  return std::uint64_t{left} << 32 | right;
}

}  // namespace

WordBpe::WordBpe(std::span<const std::string> tokens, std::string prefix, std::uint32_t unknown,
                 WordBpeSettings settings)
    : prefix_(std::move(prefix)), unknown_(unknown), settings_(std::move(settings)) {
  for (std::uint32_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids_.emplace(tokens[id], id);
  }
  const std::size_t places = std::bit_ceil(2 * settings_.merges.size() + 2);
  products_.assign(places, {kFree, 0, 0});
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(places));
  for (std::uint32_t rank = 0; rank < settings_.merges.size(); ++rank) {
    const Merge& merge = settings_.merges[rank];
    products_[place_of(merge.left, merge.right)] = {pair_of(merge.left, merge.right), rank,
                                                    merge.product};
  }
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

// Where the pair is, or would be.
std::size_t WordBpe::place_of(std::uint32_t left, std::uint32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t at = pair * 0x9E3779B97F4A7C15ull >> shift_;
  while (products_[at].pair != pair && products_[at].pair != kFree) {
    at = (at + 1) & (products_.size() - 1);
  }
  return at;
}

const WordBpe::Product* WordBpe::product(std::uint32_t left, std::uint32_t right) const {
  const Product& found = products_[place_of(left, right)];
  return found.pair == kFree ? nullptr : &found;
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
    const Product* const found = product(symbols_[at].id, symbols_[symbols_[at].next].id);
    if (found != nullptr) candidates_.push(std::uint64_t{found->rank} << 32 | at);
  };
  for (std::uint32_t i = 0; i + 1 < count; ++i) push(i);
  while (!candidates_.empty()) {
    const auto at = static_cast<std::uint32_t>(candidates_.top());
    const std::uint32_t id = settings_.merges[candidates_.top() >> 32].product;
    candidates_.pop();
    Symbol& left = symbols_[at];
    if (left.is_merged || left.next == kNone) continue;
    Symbol& right = symbols_[left.next];
    const Product* const found = product(left.id, right.id);
    if (found == nullptr || found->id != id) continue;
    left.id = id;
    right.is_merged = true;
    left.next = right.next;
    if (left.next != kNone) symbols_[left.next].previous = at;
    if (left.previous != kNone) push(left.previous);
    if (left.next != kNone) push(at);
  }
}

}  // namespace tokpack

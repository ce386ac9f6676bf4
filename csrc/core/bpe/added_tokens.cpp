#include "core/bpe/added_tokens.hpp"

#include <algorithm>
#include <cstring>

namespace tokpack {

namespace {

std::uint8_t first_byte(const AddedToken& token) {
  return static_cast<std::uint8_t>(token.content[0]);
}

bool begins_with(std::string_view text, const std::string& content) {
  return text.substr(0, content.size()) == content;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  const auto repeated =
      std::unique(tokens_.begin(), tokens_.end(),
                  [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; });
  tokens_.erase(repeated, tokens_.end());
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    ++begin_[first_byte(token) + std::size_t{1}];
    longest_ = std::max(longest_, token.content.size());
    std::uint32_t shorter = i - 1;  // kNone for the first one
    while (shorter != kNone && !begins_with(token.content, tokens_[shorter].content)) {
      shorter = shorter_[shorter];
    }
    shorter_.push_back(shorter);
    for (std::size_t second = 0; second < 256; ++second) {
      const bool possible =
          token.content.size() == 1 || second == static_cast<std::uint8_t>(token.content[1]);
      if (possible) pairs_.set(std::size_t{first_byte(token)} << 8 | second);
    }
  }
  for (std::size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
  if (!tokens_.empty() && first_byte(tokens_.front()) == first_byte(tokens_.back())) {
    only_first_byte_ = first_byte(tokens_.front());
  }
}

AddedTokenMatcher::Match AddedTokenMatcher::find(const std::uint8_t* text, std::size_t size,
                                                 std::size_t from) const {
  for (std::size_t at = from; at < size; ++at) {
    if (only_first_byte_ >= 0) {
      const void* hit = std::memchr(text + at, only_first_byte_, size - at);
      if (hit == nullptr) break;
      at = static_cast<std::size_t>(static_cast<const std::uint8_t*>(hit) - text);
    }
    if (at + 1 < size && !pairs_[std::size_t{text[at]} << 8 | text[at + 1]]) continue;
    const std::uint32_t i = longest_at({reinterpret_cast<const char*>(text) + at, size - at});
    if (i == kNone) continue;
    const AddedToken& token = tokens_[i];
    return {at, at + token.content.size(), token.id, token.special};
  }
  return {size, size, 0, false};
}

// Tokens that the text begins with come before it in the order of bytes, and nothing but their own
// continuations between them and it. So they are the last token before the text or begin that one.
std::uint32_t AddedTokenMatcher::longest_at(std::string_view text) const {
  text = text.substr(0, longest_);
  const auto first = static_cast<std::uint8_t>(text[0]);
  const auto begin = tokens_.begin() + begin_[first];
  const auto after = std::upper_bound(
      begin, tokens_.begin() + begin_[first + std::size_t{1}], text,
      [](std::string_view t, const AddedToken& token) { return t < token.content; });
  if (after == begin) return kNone;
  auto i = static_cast<std::uint32_t>(after - tokens_.begin() - 1);
  while (i != kNone && !begins_with(text, tokens_[i].content)) i = shorter_[i];
  return i;
}

void drop_apart_specials(std::vector<AddedToken>& tokens) {
  // A special token may reach the others through another special one, which it overlaps.
  std::array<bool, 256> used{};
  std::vector<bool> keep(tokens.size(), false);
  for (bool more = true; more;) {
    more = false;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::string& content = tokens[i].content;
      if (keep[i]) continue;
      if (tokens[i].special && std::none_of(content.begin(), content.end(), [&](char byte) {
            return used[static_cast<std::uint8_t>(byte)];
          })) {
        continue;
      }
      keep[i] = more = true;
      for (const char byte : content) used[static_cast<std::uint8_t>(byte)] = true;
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (keep[i]) std::swap(tokens[kept++], tokens[i]);
  }
  tokens.resize(kept);
}

std::size_t longest_space_run(const std::vector<AddedToken>& tokens) {
  std::vector<bool> seen;
  for (const AddedToken& token : tokens) {
    const std::size_t size = token.content.size();
    if (token.special || size < 2 || token.content.find_first_not_of(' ') != std::string::npos) {
      return 0;
    }
    if (seen.size() <= size) seen.resize(size + 1);
    seen[size] = true;
  }
  const bool complete = std::all_of(seen.begin() + std::min<std::ptrdiff_t>(2, std::ssize(seen)),
                                    seen.end(), [](bool s) { return s; });
  return complete && !seen.empty() ? seen.size() - 1 : 0;
}

}  // namespace tokpack

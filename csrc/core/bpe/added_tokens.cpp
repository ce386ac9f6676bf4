#include "core/bpe/added_tokens.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/text/code_points.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {

namespace {

constexpr std::size_t kFewFirstBytes = 4;
constexpr std::size_t kChunk = 4096;

std::uint8_t byte_of(const AddedToken& token, std::size_t i) {
  return static_cast<std::uint8_t>(token.content[i]);
}

bool begins_with(const std::uint8_t* text, std::size_t size, const AddedToken& token) {
  return token.content.size() <= size &&
         std::memcmp(text, token.content.data(), token.content.size()) == 0;
}

// Removes special tokens that share no byte with another token, directly or through other special
// ones: no match overlaps them, so that as text they need not be found.
void drop_apart_specials(std::vector<AddedToken>& tokens) {
  // A special token may overlap another one that overlaps a token that is not special.
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

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, bool special_is_text)
    : special_is_text_(special_is_text), tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  // std::string compares its characters as unsigned ones.
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(),
                            [](const auto& a, const auto& b) { return a.content == b.content; }),
                tokens_.end());
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    // Every token that this one begins with comes before it, and is the one right before it or one
    // of that one's parents.
    std::uint32_t parent = i == 0 ? kNoParent : i - 1;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(tokens_[i].content.data());
    while (parent != kNoParent && !begins_with(bytes, tokens_[i].content.size(), tokens_[parent])) {
      parent = parents_[parent];
    }
    parents_.push_back(parent);
    const std::uint8_t first = byte_of(tokens_[i], 0);
    if (!is_first_[first]) firsts_.push_back(first);
    is_first_[first] = true;
    if (tokens_[i].content.size() == 1) {
      std::fill_n(&pairs_[first << 2], 4, ~std::uint64_t{0});
    } else {
      const std::uint8_t second = byte_of(tokens_[i], 1);
      pairs_[first << 2 | second >> 6] |= std::uint64_t{1} << (second & 63);
    }
  }
}

const AddedToken* AddedTokenMatcher::match(const std::uint8_t* text, std::size_t size,
                                           std::size_t at) const {
  if (at + 1 < size && !may_begin(text[at], text[at + 1])) return nullptr;
  const std::string_view rest(reinterpret_cast<const char*>(text + at), size - at);
  // A token that the rest of the text begins with is the last one that does not sort behind it, or
  // one of its parents.
  const auto behind = std::upper_bound(
      tokens_.begin(), tokens_.end(), rest,
      [](std::string_view value, const AddedToken& token) { return value < token.content; });
  if (behind == tokens_.begin()) return nullptr;
  auto i = static_cast<std::uint32_t>(behind - tokens_.begin() - 1);
  while (i != kNoParent && !begins_with(text + at, size - at, tokens_[i])) i = parents_[i];
  return i == kNoParent ? nullptr : &tokens_[i];
}

AddedTokenMatcher::Match AddedTokenMatcher::find(const std::uint8_t* text, std::size_t size,
                                                 std::size_t from) const {
  if (tokens_.empty()) return {size, size};
  const auto found = [&](std::size_t at, const AddedToken& token) {
    return Match{at,           at + token.content.size(), token.id, token.special, token.lstrip,
                 token.rstrip, token.single_word};
  };
  if (firsts_.size() > kFewFirstBytes) {
    for (std::size_t at = from; at < size; ++at) {
      if (!is_first_[text[at]]) continue;
      if (const AddedToken* token = match(text, size, at)) return found(at, *token);
    }
    return {size, size};
  }
  // In chunks, so that a byte that is rare is not searched far ahead again and again.
  for (std::size_t begin = from; begin < size; begin += kChunk) {
    const std::size_t end = std::min(size, begin + kChunk);
    std::array<std::size_t, kFewFirstBytes> next;
    const auto look = [&](std::size_t k, std::size_t at) {
      const void* hit = std::memchr(text + at, firsts_[k], end - at);
      next[k] = hit == nullptr
                    ? end
                    : static_cast<std::size_t>(static_cast<const std::uint8_t*>(hit) - text);
    };
    for (std::size_t k = 0; k < firsts_.size(); ++k) look(k, begin);
    for (;;) {
      const auto nearest = std::min_element(next.begin(), next.begin() + std::ssize(firsts_));
      const std::size_t at = *nearest;
      if (at == end) break;
      if (const AddedToken* token = match(text, size, at)) return found(at, *token);
      look(static_cast<std::size_t>(nearest - next.begin()), at + 1);
    }
  }
  return {size, size};
}

std::size_t AddedTokenMatcher::count(const std::uint8_t* text, std::size_t size) const {
  std::size_t matches = 0;
  for (std::size_t at = 0;; ++matches) {
    const Match match = find(text, size, at);
    if (match.begin == size) return matches;
    at = match.end;
  }
}

std::size_t space_at(const std::uint8_t* text, std::size_t size, std::size_t at) {
  const std::uint8_t first = text[at];
  if (first < 0x80) return (ascii_class(first) & kSpace) != 0 ? 1 : 0;
  const std::size_t length = first < 0xE0 ? 2 : 3;
  if (first < 0xC0 || first >= 0xF0 || length > size - at) return 0;
  return (char_class(decode_utf8(text + at).value) & kSpace) != 0 ? length : 0;
}

std::size_t space_begin(const std::uint8_t* text, std::size_t at) {
  while (at > 0) {
    std::size_t size = 1;
    while (size < 3 && size < at && (text[at - size] & 0xC0) == 0x80) ++size;
    if (space_at(text, at, at - size) != size) break;
    at -= size;
  }
  return at;
}

std::size_t space_end(const std::uint8_t* text, std::size_t size, std::size_t at) {
  while (at < size) {
    const std::size_t length = space_at(text, size, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

bool stands_alone(const std::uint8_t* text, std::size_t size, std::size_t begin, std::size_t end) {
  static const CodePoints words = CodePoints::rust_words();
  std::size_t before = begin;
  while (before > 0 && begin - before < 4 && (text[--before] & 0xC0) == 0x80) {
  }
  const auto is_word = [&](std::size_t from, std::size_t to) {
    // A character that is cut off is none.
    if (from == to || (text[from] & 0xC0) == 0x80) return false;
    return character_size(text[from]) <= to - from &&
           words.contains(decode_utf8(text + from).value);
  };
  return !is_word(before, begin) && !is_word(end, size);
}

AddedTokenGroups group_added_tokens(std::vector<AddedToken> tokens, bool encode_specials,
                                    const std::function<std::string(std::string)>& normal_form) {
  std::vector<AddedToken> raw, normalized, counted;
  for (AddedToken& token : tokens) {
    if (token.special && !encode_specials) counted.push_back(token);
    if (token.normalized && normal_form) token.content = normal_form(std::move(token.content));
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  if (!encode_specials) {
    drop_apart_specials(raw);
    drop_apart_specials(normalized);
  }
  return {AddedTokenMatcher(std::move(raw), !encode_specials),
          AddedTokenMatcher(std::move(normalized), !encode_specials),
          AddedTokenMatcher(std::move(counted))};
}

std::size_t longest_space_run(const std::vector<AddedToken>& tokens) {
  std::vector<bool> seen;
  for (const AddedToken& token : tokens) {
    const std::size_t size = token.content.size();
    const bool is_plain = !token.special && !token.lstrip && !token.rstrip && !token.single_word;
    if (!is_plain || size < 2 || token.content.find_first_not_of(' ') != std::string::npos) {
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

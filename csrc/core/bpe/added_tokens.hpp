// Tokens that are cut out of the text before BPE sees it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokpack {

struct AddedToken {
  std::string content;
  std::uint32_t id;
  bool special;         // a control token such as <|endoftext|>
  bool normalized;      // looked for after normalization, not before
  bool lstrip = false;  // takes in the white space before it
  bool rstrip = false;  // and behind it
};

// Finds the leftmost, then longest, of a set of strings, as the Hugging Face library does.
class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
    std::uint32_t id = 0;
    bool special = false;
    bool lstrip = false;
    bool rstrip = false;
  };

  AddedTokenMatcher() = default;
  // Empty contents are ignored; of equal ones the first counts.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  // The first match in text[from, size); begin == size when there is none.
  Match find(const std::uint8_t* text, std::size_t size, std::size_t from) const;
  // How many there are, one behind the other.
  std::size_t count(const std::uint8_t* text, std::size_t size) const;

 private:
  static constexpr std::uint32_t kNoParent = 0xFFFFFFFFu;

  // The longest token that text[at, size) begins with, or null.
  const AddedToken* match(const std::uint8_t* text, std::size_t size, std::size_t at) const;
  bool may_begin(std::uint8_t first, std::uint8_t second) const {
    return (pairs_[first << 2 | second >> 6] >> (second & 63) & 1) != 0;
  }

  std::vector<AddedToken> tokens_;      // sorted by their bytes
  std::vector<std::uint32_t> parents_;  // of each, the longest other token that it begins with
  std::vector<std::uint8_t> firsts_;    // the different first bytes
  std::array<bool, 256> is_first_{};
  std::array<std::uint64_t, 1024> pairs_{};  // the bytes that tokens begin with, two at a time
};

// The size of the white space character that text[at, size) begins with, else 0. None has four
// bytes. REQUIRES: at < size.
std::size_t space_at(const std::uint8_t* text, std::size_t size, std::size_t at);

// Where the white space that ends at `at` begins, and where that which begins there ends.
std::size_t space_begin(const std::uint8_t* text, std::size_t at);
std::size_t space_end(const std::uint8_t* text, std::size_t size, std::size_t at);

// Cuts a text at the tokens in it: calls piece(text, size) for what lies between, never empty, and
// token(match), in their order. With `special_is_text` special ones are found all the same, so that
// no token is found that begins within one, but they stay a part of what lies between.
// REQUIRES: where a token has rstrip, none begins with white space.
template <class Piece, class Token>
void split_at_tokens(const AddedTokenMatcher& matcher, const std::uint8_t* text, std::size_t size,
                     bool special_is_text, Piece&& piece, Token&& token) {
  std::size_t from = 0, at = 0;
  while (!matcher.empty()) {
    const AddedTokenMatcher::Match match = matcher.find(text, size, at);
    if (match.begin == size) break;
    at = match.end;
    if (match.special && special_is_text) continue;
    const std::size_t begin =
        match.lstrip ? std::max(from, space_begin(text, match.begin)) : match.begin;
    if (begin > from) piece(text + from, begin - from);
    token(match);
    from = match.rstrip ? space_end(text, size, match.end) : match.end;
  }
  if (from < size) piece(text + from, size - from);
}

// Removes special tokens that no chain of shared bytes links to another token: none overlaps them.
void drop_apart_specials(std::vector<AddedToken>& tokens);

// How many spaces the longest token of a complete series "  ", "   ", ... has; 0 when `tokens` are
// anything else.
std::size_t longest_space_run(const std::vector<AddedToken>& tokens);

}  // namespace tokpack

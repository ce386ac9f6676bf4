// Tokens that are cut out of the text before BPE sees it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tokpack {

struct AddedToken {
  std::string content;
  std::uint32_t id;
  bool special;              // a control token such as <|endoftext|>
  bool normalized;           // looked for after normalization, not before
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space behind it
  bool single_word = false;  // only where no word character is before or behind it
};

// Finds the leftmost, and of those the longest, of a set of strings, as the Hugging Face library
// does.
class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
    std::uint32_t id = 0;
    bool special = false;
    bool lstrip = false;
    bool rstrip = false;
    bool single_word = false;
  };

  AddedTokenMatcher() = default;
  // Tokens of empty content are ignored, and of equal content all but the first. `special_is_text`
  // is for split_at_tokens().
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens, bool special_is_text = false);

  bool empty() const { return tokens_.empty(); }
  bool special_is_text() const { return special_is_text_; }
  const std::vector<AddedToken>& tokens() const { return tokens_; }  // sorted by their bytes
  // The first match in text[from, size); begin is `size` when there is none.
  Match find(const std::uint8_t* text, std::size_t size, std::size_t from) const;
  // The number of matches, each searched for from the end of the one before.
  std::size_t count(const std::uint8_t* text, std::size_t size) const;

 private:
  static constexpr std::uint32_t kNoParent = 0xFFFFFFFFu;

  // The longest token that text[at, size) begins with, or null.
  const AddedToken* match(const std::uint8_t* text, std::size_t size, std::size_t at) const;
  bool may_begin(std::uint8_t first, std::uint8_t second) const {
    return (pairs_[first << 2 | second >> 6] >> (second & 63) & 1) != 0;
  }

  bool special_is_text_ = false;
  std::vector<AddedToken> tokens_;
  std::vector<std::uint32_t> parents_;  // by token: the longest other one that it begins with
  std::vector<std::uint8_t> firsts_;    // the different first bytes
  std::array<bool, 256> is_first_{};
  std::array<std::uint64_t, 1024>
      pairs_{};  // a bit for each pair of bytes that a token begins with
};

// The bytes of the white space character that text[at, size) begins with; 0 if it begins with
// another one. REQUIRES: at < size.
std::size_t space_at(const std::uint8_t* text, std::size_t size, std::size_t at);

// Where the white space before text[at] begins, and where that from text[at] on ends; `at` for
// none.
std::size_t space_begin(const std::uint8_t* text, std::size_t at);
std::size_t space_end(const std::uint8_t* text, std::size_t size, std::size_t at);

// Whether neither the character before text[begin, end) nor the one behind is a word character.
bool stands_alone(const std::uint8_t* text, std::size_t size, std::size_t begin, std::size_t end);

// Cuts a text at the tokens in it: calls piece(text, size) for what is between, never empty, and
// token(match, begin, end) with all that the token takes, in their order. Where special tokens are
// text they are found all the same, so that no other token is found that begins within one, but
// they stay in the pieces, as does a single_word within a word. REQUIRES: where a token has rstrip,
// none begins with white space.
template <class Piece, class Token>
void split_at_tokens(const AddedTokenMatcher& matcher, const std::uint8_t* text, std::size_t size,
                     Piece&& piece, Token&& token) {
  std::size_t from = 0, at = 0;
  while (!matcher.empty()) {
    const AddedTokenMatcher::Match match = matcher.find(text, size, at);
    if (match.begin == size) break;
    at = match.end;
    if (match.special && matcher.special_is_text()) continue;
    if (match.single_word && !stands_alone(text, size, match.begin, match.end)) continue;
    const std::size_t begin =
        match.lstrip ? std::max(from, space_begin(text, match.begin)) : match.begin;
    if (begin > from) piece(text + from, begin - from);
    from = match.rstrip ? space_end(text, size, match.end) : match.end;
    token(match, text + begin, text + from);
  }
  if (from < size) piece(text + from, size - from);
}

// The added tokens of a tokenizer, by where they are looked for.
struct AddedTokenGroups {
  AddedTokenMatcher raw;         // in the text as it is
  AddedTokenMatcher normalized;  // in its normal form
  AddedTokenMatcher counted;     // in the text as it is: special tokens that are only counted
};

// With `encode_specials` special tokens become ids, otherwise they are text, and counted.
// `normal_form` of the content of `normalized` tokens is what is looked for; without it, the
// content.
AddedTokenGroups group_added_tokens(
    std::vector<AddedToken> tokens, bool encode_specials,
    const std::function<std::string(std::string)>& normal_form = {});

// The size of the longest token of a complete series "  ", "   ", ... of tokens that are not
// special, and found wherever they are; 0 when `tokens` are anything else.
std::size_t longest_space_run(const std::vector<AddedToken>& tokens);

}  // namespace tokpack

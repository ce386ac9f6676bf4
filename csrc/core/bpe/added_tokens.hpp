// Tokens that are cut out of the text before BPE sees it.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokpack {

struct AddedToken {
  std::string content;
  std::uint32_t id;
  bool special;     // a control token such as <|endoftext|>
  bool normalized;  // looked for after normalization, not before
};

// Finds the leftmost, then longest, of a set of strings, as the Hugging Face library does.
class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
    std::uint32_t id;
    bool special;
  };

  AddedTokenMatcher() = default;
  // Empty contents are ignored.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  // The first match in text[from, size); begin == size when there is none.
  Match find(const std::uint8_t* text, std::size_t size, std::size_t from) const;

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  // The longest token that a text which is not empty begins with.
  std::uint32_t longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;           // in the order of their bytes
  std::vector<std::uint32_t> shorter_;       // the longest other token that each one begins with
  std::array<std::uint32_t, 257> begin_{};   // where the tokens with each first byte begin
  std::bitset<std::size_t{1} << 16> pairs_;  // first two bytes that a token can begin at
  std::size_t longest_ = 0;
  int only_first_byte_ = -1;  // when all tokens share it
};

// Removes special tokens that no chain of shared bytes links to another token: none overlaps them.
void drop_apart_specials(std::vector<AddedToken>& tokens);

// How many spaces the longest token of a complete series "  ", "   ", ... has; 0 when `tokens` are
// anything else.
std::size_t longest_space_run(const std::vector<AddedToken>& tokens);

}  // namespace tokpack

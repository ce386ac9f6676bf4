// Tokens that are cut out of the text before BPE sees it.
#pragma once

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
  std::vector<AddedToken> tokens_;          // by first byte, longest first
  std::array<std::uint32_t, 257> begin_{};  // where the tokens with each first byte begin
  int only_first_byte_ = -1;                // when all tokens share it
};

// Removes special tokens that no chain of shared bytes links to another token: none overlaps them.
void drop_apart_specials(std::vector<AddedToken>& tokens);

// How many spaces the longest token of a complete series "  ", "   ", ... has; 0 when `tokens` are
// anything else.
std::size_t longest_space_run(const std::vector<AddedToken>& tokens);

}  // namespace tokpack

// The normalization rules of SentencePiece, compiled by it: texts, and what replaces each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokpack {

// The rules are in a double-array trie (Darts), a blob in a model file, and in a tokenizer.json in
// its normalizer Precompiled.
class CharacterMap {
 public:
  CharacterMap() = default;
  // Throws std::invalid_argument when the blob is not laid out as it should be.
  explicit CharacterMap(const std::string& blob);

  struct Rule {
    std::size_t size = 0;  // of what is replaced; 0: no rule
    std::string_view replacement;
  };
  // The longest rule that the text begins with, as SentencePiece takes it.
  Rule longest(const std::uint8_t* text, std::size_t size) const;
  // The shortest one, as the Hugging Face library takes it; a NUL ends the text.
  Rule shortest(const std::uint8_t* text, std::size_t size) const;

  // Whether some rule begins with these two bytes, or is the first of them alone.
  bool may_apply(std::uint8_t first, std::uint8_t second) const;

  // Whether no rule begins with this character; for an ASCII one, whether no rule is it alone.
  bool leaves(std::uint32_t code_point) const {
    return code_point < 0x10000 && (kept_[code_point >> 6] >> (code_point & 63) & 1) != 0;
  }

  // Whether all replacements lie within the blob and are UTF-8. The Hugging Face library fails
  // where they do not.
  bool is_sound() const;

  bool empty() const { return units_.empty(); }

 private:
  std::uint32_t unit(std::uint32_t at) const { return at < units_.size() ? units_[at] : kNoUnit; }
  bool may_begin(const std::uint8_t* text, std::size_t size) const;

  static constexpr std::uint32_t kNoUnit = 0x80000000u;  // a value, which no byte leads to
  std::vector<std::uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
  std::vector<std::uint64_t> kept_ = std::vector<std::uint64_t>(0x10000 / 64, ~std::uint64_t{0});
};

}  // namespace tokpack

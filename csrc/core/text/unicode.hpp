// Character classes of all code points.
#pragma once

#include <cstdint>
#include <string_view>

namespace tokpack {

// The version whose \p{..} classes the tables hold: that of Oniguruma in tokenizers 0.21 to 0.23.
inline constexpr std::string_view kUnicodeVersion = "16.0.0";

// Bits of char_class(). The other letters, \p{Lm} and \p{Lo}, have kLetter and neither case bit.
// No bit at all: controls, format, private use and unassigned characters, surrogates.
enum CharClass : std::uint8_t {
  kLetter = 1,    // \p{L}
  kNumber = 2,    // \p{N}
  kSpace = 4,     // \s: U+0009..D 20 85 A0 1680 2000..200A 2028 2029 202F 205F 3000
  kMark = 8,      // \p{M}
  kSymbol = 16,   // \p{P} or \p{S}
  kUpper = 32,    // \p{Lu} or \p{Lt}, beside kLetter
  kLower = 64,    // \p{Ll}, beside kLetter
  kNewline = 128  // \r or \n, beside kSpace
};

namespace unicode {
inline constexpr unsigned kBlockBits = 7;
extern const std::uint8_t kClassIndex[0x110000 >> kBlockBits];
extern const std::uint8_t kClassBlocks[];  // block 0 is ASCII
}  // namespace unicode

// REQUIRES: code_point < 0x110000.
inline std::uint8_t char_class(std::uint32_t code_point) {
  using namespace unicode;
  const std::uint32_t block = kClassIndex[code_point >> kBlockBits];
  return kClassBlocks[(block << kBlockBits) + (code_point & ((1u << kBlockBits) - 1))];
}

// REQUIRES: byte < 0x80.
inline std::uint8_t ascii_class(std::uint8_t byte) { return unicode::kClassBlocks[byte]; }

}  // namespace tokpack

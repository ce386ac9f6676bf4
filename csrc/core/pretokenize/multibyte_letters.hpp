// Which characters of two and three bytes are known to be letters by their first two bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/text/unicode.hpp"

namespace tokpack {

// First bytes of letters of two and of three bytes, as masks.
struct MultibyteLetters {
  std::uint64_t two = 0, three = 0;
};

// Two tables, indexed by the low six bits of the first and of the second byte. The entry of a first
// byte has kTwo or kThree, the size of its characters, when all of them are letters or all but a
// few. With a few exceptions it also has the bit of a family, and so have the second bytes that
// make an exception. So a character is a letter for sure when its first byte has kTwo or kThree and
// shares no family bit with the second.
struct MultibyteLetterTable {
  static constexpr std::uint8_t kTwo = 0x40, kThree = 0x80, kFamilies = 0x3F;
  alignas(64) std::uint8_t by_first[64] = {};
  alignas(64) std::uint8_t by_second[64] = {};

  MultibyteLetterTable() {
    // First bytes with few exceptions, of common scripts: Latin with accents, Greek, Cyrillic,
    // Chinese, Korean.
    constexpr std::uint8_t kWithExceptions[] = {0xC3, 0xCE, 0xCF, 0xD2, 0xE4, 0xED};
    for (std::uint32_t first = 0xC2; first < 0xF0; ++first) {
      std::uint8_t family = 0;
      for (std::size_t f = 0; f < sizeof kWithExceptions; ++f) {
        if (kWithExceptions[f] == first) family = static_cast<std::uint8_t>(1u << f);
      }
      bool all = true;
      for (std::uint32_t second = 0; second < 64; ++second) {
        if (letters(first, second)) continue;
        all = false;
        by_second[second] |= family;
      }
      if (!all && family == 0) continue;
      by_first[first & 63] = family | (first < 0xE0 ? kTwo : kThree);
    }
  }

 private:
  // Whether every character that begins so is a letter.
  static bool letters(std::uint32_t first, std::uint32_t second) {
    if (first < 0xE0) return (char_class((first & 0x1F) << 6 | second) & kLetter) != 0;
    if (first == 0xE0 && second < 0x20) return false;  // an overlong form
    for (std::uint32_t third = 0; third < 64; ++third) {
      const std::uint32_t code_point = (first & 0x0F) << 12 | second << 6 | third;
      if ((char_class(code_point) & kLetter) == 0) return false;
    }
    return true;
  }
};

inline const MultibyteLetterTable kMultibyteLetters;

}  // namespace tokpack

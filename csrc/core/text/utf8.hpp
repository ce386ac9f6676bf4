// UTF-8: validation, and decoding of text that is known to be valid.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/cpu.hpp"

namespace tokpack {

// Whether the bytes are UTF-8 as Python's strict decoder has it: no overlong forms, no surrogates,
// nothing above U+10FFFF.
using Utf8Check = bool (*)(const std::uint8_t* data, std::size_t size);

// The validation for a level. REQUIRES: this machine has the level.
Utf8Check utf8_check(Level level);

// The size in bytes of a character that begins with this byte; 1 for a byte that begins none.
inline std::size_t character_size(std::uint8_t first) {
  return first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

struct CodePoint {
  std::uint32_t value;
  std::uint32_t size;  // in bytes, 1 to 4
};

// The character at p. REQUIRES: valid UTF-8, and p is at the start of a character.
inline CodePoint decode_utf8(const std::uint8_t* p) {
  const std::uint32_t b = p[0];
  if (b < 0x80) return {b, 1};
  if (b < 0xE0) return {(b & 0x1F) << 6 | (p[1] & 0x3Fu), 2};
  if (b < 0xF0) return {(b & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu), 3};
  return {(b & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu), 4};
}

}  // namespace tokpack

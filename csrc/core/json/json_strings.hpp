// The inside of JSON strings, where almost every byte of a JSON line is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/cpu.hpp"

namespace tokpack {

// Bytes after `out` that copy() may overwrite beyond what it has written.
inline constexpr std::size_t kStringSlack = 64;

struct StringKernels {
  // Unescapes the string whose first byte is at `in` to *out, and advances *out past it. Returns
  // the byte after the closing quote, or null when the string does not end before `end`, or holds a
  // raw control character, a malformed escape or a lone surrogate. Sets *high when it has a byte >=
  // 0x80. Writes no more bytes than it reads, and up to kStringSlack beyond; reads nothing from
  // `end` on.
  const std::uint8_t* (*copy)(const std::uint8_t* in, const std::uint8_t* end, std::uint8_t** out,
                              bool* high);
  // The same without a copy; lone surrogates are allowed.
  const std::uint8_t* (*skip)(const std::uint8_t* in, const std::uint8_t* end, bool* high);
};

// REQUIRES: this machine has the level.
const StringKernels& string_kernels(Level level);

}  // namespace tokpack

// Escape sequences of JSON strings, shared by the kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tokpack {

// The character that an escape stands for, by the one after its backslash; 0 for `u` and for an
// unknown escape.
inline constexpr std::array<std::uint8_t, 256> kUnescaped = [] {
  std::array<std::uint8_t, 256> table{};
  table['"'] = '"';
  table['\\'] = '\\';
  table['/'] = '/';
  table['b'] = '\b';
  table['f'] = '\f';
  table['n'] = '\n';
  table['r'] = '\r';
  table['t'] = '\t';
  return table;
}();

inline constexpr std::array<std::int8_t, 256> kHexDigit = [] {
  std::array<std::int8_t, 256> table{};
  table.fill(-1);
  for (int i = 0; i < 10; ++i) table['0' + i] = static_cast<std::int8_t>(i);
  for (int i = 0; i < 6; ++i) {
    table['a' + i] = table['A' + i] = static_cast<std::int8_t>(10 + i);
  }
  return table;
}();

// The value of the four hex digits at `in`; negative if they are not hex digits. REQUIRES: four
// readable bytes.
inline std::int32_t hex4(const std::uint8_t* in) {
  return kHexDigit[in[0]] * 4096 | kHexDigit[in[1]] * 256 | kHexDigit[in[2]] * 16 |
         kHexDigit[in[3]];
}

inline bool unicode_escape_follows(const std::uint8_t* in, const std::uint8_t* end) {
  return end - in >= 2 && in[0] == '\\' && in[1] == 'u';
}

// Writes the character of a \uXXXX, or of two that are a surrogate pair, as UTF-8 to *out and
// advances it. `in` is after the first u. Returns the byte after the last digit, or null for bad
// digits and lone surrogates.
const std::uint8_t* copy_unicode_escape(const std::uint8_t* in, const std::uint8_t* end,
                                        std::uint8_t** out);

// Skips one \uXXXX in the same way; a lone surrogate is allowed.
const std::uint8_t* skip_unicode_escape(const std::uint8_t* in, const std::uint8_t* end);

}  // namespace tokpack

// The tables of the vectorized UTF-8 validation, after Keiser and Lemire ("Validating UTF-8 in less
// than one instruction per byte", 2021): three tables of sixteen entries, indexed by the high and
// the low nibble of a byte and by the high nibble of the next byte. An entry is a set of possible
// errors, and an error that is in all three entries is present. utf8_vectors.inc.hpp looks them up.
#pragma once

#include <array>
#include <cstdint>

namespace tokpack::utf8_errors {

// Errors of a pair of bytes.
enum : std::uint8_t {
  kTooShort = 1 << 0,      // a lead, then no continuation
  kTooLong = 1 << 1,       // ASCII, then a continuation
  kOverlong3 = 1 << 2,     // e0 80..9f
  kTooLarge = 1 << 3,      // f4 90..bf, f5.. 90..bf
  kSurrogate = 1 << 4,     // ed a0..bf
  kOverlong2 = 1 << 5,     // c0 or c1, then a continuation
  kTooLarge1000 = 1 << 6,  // f5.. 80..8f
  kOverlong4 = 1 << 6,     // f0 80..8f
  kTwoConts = 1 << 7,      // two continuations: an error unless a lead of three or four came before
  kCarry = kTooShort | kTooLong |
      kTwoConts,  // errors that the low nibble of the first cannot rule out
};

using Table = std::array<std::uint8_t, 16>;

inline constexpr Table kFirstHigh = {
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTwoConts,
    kTwoConts,
    kTwoConts,
    kTwoConts,
    kTooShort | kOverlong2,
    kTooShort,
    kTooShort | kOverlong3 | kSurrogate,
    kTooShort | kTooLarge | kTooLarge1000 | kOverlong4,
};

inline constexpr Table kFirstLow = [] {
  Table table{};
  for (int low = 0; low < 16; ++low) {
    std::uint8_t errors = kCarry;
    if (low < 2) errors |= kOverlong2;
    if (low == 0) errors |= kOverlong3 | kOverlong4;
    if (low == 0xd) errors |= kSurrogate;
    if (low >= 4) errors |= kTooLarge;
    if (low >= 5) errors |= kTooLarge1000;
    table[static_cast<std::size_t>(low)] = errors;
  }
  return table;
}();

inline constexpr Table kSecondHigh = [] {
  Table table{};
  table.fill(kTooShort);
  constexpr std::uint8_t kAny = kTooLong | kOverlong2 | kTwoConts;
  table[0x8] = kAny | kOverlong3 | kTooLarge1000 | kOverlong4;
  table[0x9] = kAny | kOverlong3 | kTooLarge;
  table[0xa] = kAny | kSurrogate | kTooLarge;
  table[0xb] = kAny | kSurrogate | kTooLarge;
  return table;
}();

}  // namespace tokpack::utf8_errors

// Products of 64-bit numbers in 128 bits.
#pragma once

#include <cstdint>

namespace tokpack {

// An unsigned 128-bit number.
struct Uint128 {
  std::uint64_t high;
  std::uint64_t low;
};

// For compilers without a 128-bit type; multiply_128() gives the same, faster, where there is one.
constexpr Uint128 multiply_128_portable(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a0 = a & 0xFFFFFFFFu, a1 = a >> 32;
  const std::uint64_t b0 = b & 0xFFFFFFFFu, b1 = b >> 32;
  const std::uint64_t cross = (a0 * b0 >> 32) + (a0 * b1 & 0xFFFFFFFFu) + a1 * b0;
  return {a1 * b1 + (a0 * b1 >> 32) + (cross >> 32), a * b};
}

constexpr Uint128 multiply_128(std::uint64_t a, std::uint64_t b) {
#ifdef __SIZEOF_INT128__
  __extension__ using Product = unsigned __int128;
  const Product product = static_cast<Product>(a) * b;
  return {static_cast<std::uint64_t>(product >> 64), static_cast<std::uint64_t>(product)};
#else
  return multiply_128_portable(a, b);
#endif
}

}  // namespace tokpack

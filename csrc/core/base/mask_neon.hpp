// Masks, with bit i for byte i, of the results of NEON's comparisons, whose bytes are all ones or
// all zeros. x86 has an instruction for this, NEON has none.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace tokpack {

// The highest bit of each of 64 bytes in the order of vld4q_u8(): byte i is in lane i / 4 of vector
// i % 4. So shifts that insert put the bits of four neighbouring bytes side by side.
inline std::uint64_t mask_neon(uint8x16x4_t bytes) {
  const uint8x16_t low = vsriq_n_u8(bytes.val[1], bytes.val[0], 1);
  const uint8x16_t high = vsriq_n_u8(bytes.val[3], bytes.val[2], 1);
  const uint8x16_t four = vsriq_n_u8(high, low, 2);
  // The four bits, twice, in each lane; then those of two lanes in one.
  const uint16x8_t twice = vreinterpretq_u16_u8(vsriq_n_u8(four, four, 4));
  return vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(twice, 4)), 0);
}

// The same for 32 bytes in order, each all ones or all zeros.
inline std::uint32_t mask_neon(uint8x16_t low, uint8x16_t high) {
  const uint8x16_t bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t pairs = vpaddq_u8(vandq_u8(low, bits), vandq_u8(high, bits));
  const uint8x16_t fours = vpaddq_u8(pairs, pairs);
  return vgetq_lane_u32(vreinterpretq_u32_u8(vpaddq_u8(fours, fours)), 0);
}

}  // namespace tokpack

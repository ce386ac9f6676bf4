// Finding line ends with NEON, which every 64-bit ARM has: there is no choice at run time.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "core/base/mask_neon.hpp"

namespace tokpack {

// One bit for each \n of 64 bytes.
inline std::uint64_t newlines_neon(const std::uint8_t* bytes) {
  uint8x16x4_t block = vld4q_u8(bytes);
  for (uint8x16_t& part : block.val) part = vceqq_u8(part, vdupq_n_u8('\n'));
  return mask_neon(block);
}

}  // namespace tokpack

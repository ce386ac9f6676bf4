// UTF-8 validation with NEON, 64 bytes at a time; the method is explained in utf8_errors.hpp.
#if defined(__AARCH64EL__)

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/text/utf8_errors.hpp"

namespace tokpack {
namespace {

using namespace utf8_errors;

inline uint8x16_t errors_of(uint8x16_t block, uint8x16_t before) {
  const uint8x16_t first = vextq_u8(before, block, 15);
  const uint8x16_t a = vqtbl1q_u8(vld1q_u8(kFirstHigh.data()), vshrq_n_u8(first, 4));
  const uint8x16_t b = vqtbl1q_u8(vld1q_u8(kFirstLow.data()), vandq_u8(first, vdupq_n_u8(0x0f)));
  const uint8x16_t c = vqtbl1q_u8(vld1q_u8(kSecondHigh.data()), vshrq_n_u8(block, 4));
  const uint8x16_t pairs = vandq_u8(vandq_u8(a, b), c);
  const uint8x16_t third = vqsubq_u8(vextq_u8(before, block, 14), vdupq_n_u8(0x60));
  const uint8x16_t fourth = vqsubq_u8(vextq_u8(before, block, 13), vdupq_n_u8(0x70));
  const uint8x16_t wanted = vandq_u8(vorrq_u8(third, fourth), vdupq_n_u8(0x80));
  return veorq_u8(pairs, wanted);
}

}  // namespace

// Blocks of ASCII are skipped unless what is before them ends inside a character. The last block is
// filled with zeros, which are ASCII: so a character that the end cuts off is an error there.
bool valid_utf8_neon(const std::uint8_t* data, std::size_t size) {
  uint8x16_t before = vdupq_n_u8(0);
  uint8x16_t errors = vdupq_n_u8(0);
  std::uint8_t last = 0;  // byte of the block before
  std::uint8_t padded[64] = {};
  for (std::size_t i = 0; i <= size; i += 64) {
    const std::uint8_t* from = data + i;
    if (size - i < 64) {
      std::memcpy(padded, from, size - i);
      from = padded;
    }
    const uint8x16x4_t block = vld1q_u8_x4(from);
    const uint8x16_t all =
        vorrq_u8(vorrq_u8(block.val[0], block.val[1]), vorrq_u8(block.val[2], block.val[3]));
    if ((vmaxvq_u8(all) | last) >= 0x80) {
      // Keeps GCC from computing this for ASCII as well, to choose without a branch.
      asm volatile("");
      errors = vorrq_u8(errors, errors_of(block.val[0], before));
      errors = vorrq_u8(errors, errors_of(block.val[1], block.val[0]));
      errors = vorrq_u8(errors, errors_of(block.val[2], block.val[1]));
      errors = vorrq_u8(errors, errors_of(block.val[3], block.val[2]));
    }
    before = block.val[3];
    last = from[63];
  }
  return vmaxvq_u8(errors) == 0;
}

}  // namespace tokpack

#endif  // defined(__AARCH64EL__)

// UTF-8 validation with NEON, 64 bytes at a time.
#if defined(__AARCH64EL__)

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/text/utf8_errors.hpp"

namespace tokpack {
namespace {

struct Isa {
  using Bytes = uint8x16_t;

  static Bytes all(std::uint8_t byte) { return vdupq_n_u8(byte); }
  template <int kBy>
  static Bytes shifted(Bytes block, Bytes before) {
    return vextq_u8(before, block, 16 - kBy);
  }
  static Bytes low_nibbles(Bytes bytes) { return bytes & all(0x0f); }
  static Bytes high_nibbles(Bytes bytes) { return vshrq_n_u8(bytes, 4); }
  static Bytes look_up(const utf8_errors::Table& table, Bytes nibbles) {
    return vqtbl1q_u8(vld1q_u8(table.data()), nibbles);
  }
  static Bytes common(Bytes a, Bytes b, Bytes c) { return a & b & c; }
  static Bytes minus(Bytes bytes, std::uint8_t byte) { return vqsubq_u8(bytes, all(byte)); }
};

#include "core/text/utf8_vectors.inc.hpp"

}  // namespace

// Skips ASCII and treats the end as utf8_x86.inc.hpp does, but for four vectors together.
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

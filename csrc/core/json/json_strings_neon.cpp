// JSON strings with NEON.
#if defined(__AARCH64EL__)

#include <arm_neon.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/base/mask_neon.hpp"
#include "core/json/json_escape.hpp"
#include "core/json/json_strings.hpp"

namespace tokpack {
namespace {

struct Isa {
  struct Bytes {
    uint8x16_t low, high;
  };
  static Bytes zero() { return {vdupq_n_u8(0), vdupq_n_u8(0)}; }
  static Bytes load(const std::uint8_t* in) { return {vld1q_u8(in), vld1q_u8(in + 16)}; }
  static void store(std::uint8_t* out, Bytes bytes) {
    vst1q_u8(out, bytes.low);
    vst1q_u8(out + 16, bytes.high);
  }
  static Bytes either(Bytes a, Bytes b) {
    return {vorrq_u8(a.low, b.low), vorrq_u8(a.high, b.high)};
  }
  static bool high(Bytes bytes) { return vmaxvq_u8(vorrq_u8(bytes.low, bytes.high)) >= 0x80; }
  static std::uint32_t specials(Bytes bytes) {
    const auto found = [](uint8x16_t half) {
      const uint8x16_t marks =
          vorrq_u8(vceqq_u8(half, vdupq_n_u8('"')), vceqq_u8(half, vdupq_n_u8('\\')));
      return vorrq_u8(marks, vcltq_u8(half, vdupq_n_u8(0x20)));
    };
    return mask_neon(found(bytes.low), found(bytes.high));
  }
};

#include "core/json/json_strings_blocks.inc.hpp"

}  // namespace

extern const StringKernels kStringKernelsNeon;
const StringKernels kStringKernelsNeon{walk<true>, skip};

}  // namespace tokpack

#endif  // defined(__AARCH64EL__)

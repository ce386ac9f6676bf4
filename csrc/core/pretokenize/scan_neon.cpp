// The scanners for NEON.
#if defined(__AARCH64EL__)

#include <arm_neon.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/load.hpp"
#include "core/base/mask_neon.hpp"
#include "core/pretokenize/scan.hpp"
#include "core/pretokenize/scan_fallback.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

#include "core/pretokenize/scan_common.inc.hpp"

struct Isa : CommonIsa {
  using Bytes = uint8x16x4_t;  // every fourth byte, as mask_neon() wants them

  static Bytes load(const std::uint8_t* text) { return vld4q_u8(text); }

  template <class Operation>
  static std::uint64_t mask(const Bytes& bytes, Operation operation) {
    return mask_neon(uint8x16x4_t{{operation(bytes.val[0]), operation(bytes.val[1]),
                                   operation(bytes.val[2]), operation(bytes.val[3])}});
  }
  static std::uint64_t equal(const Bytes& bytes, std::uint8_t byte) {
    return mask(bytes, [=](uint8x16_t x) { return vceqq_u8(x, vdupq_n_u8(byte)); });
  }
  static std::uint64_t in_range(const Bytes& bytes, std::uint8_t first, std::uint8_t count) {
    return mask(bytes, [=](uint8x16_t x) {
      return vcltq_u8(vsubq_u8(x, vdupq_n_u8(first)), vdupq_n_u8(count));
    });
  }
  static std::uint64_t ascii_letters(const Bytes& bytes) {
    return mask(bytes, [](uint8x16_t x) {
      const uint8x16_t folded = vorrq_u8(x, vdupq_n_u8(0x20));
      return vcltq_u8(vsubq_u8(folded, vdupq_n_u8('a')), vdupq_n_u8(26));
    });
  }
  static std::uint64_t at_least(const Bytes& bytes, std::uint8_t byte) {
    if (byte == 0x80) return mask_neon(bytes);
    return mask(bytes, [=](uint8x16_t x) { return vcgeq_u8(x, vdupq_n_u8(byte)); });
  }
  static std::uint64_t any(const Bytes& bytes, std::uint8_t bits) {
    return mask(bytes, [=](uint8x16_t x) { return vtstq_u8(x, vdupq_n_u8(bits)); });
  }
};

#include "core/pretokenize/scan.inc.hpp"

}  // namespace

Scanner scanner_neon(const ScanShape& shape) { return scanner_of(shape); }

}  // namespace tokpack

#endif  // defined(__AARCH64EL__)

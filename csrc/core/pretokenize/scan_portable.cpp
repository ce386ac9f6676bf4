// The scanners for any processor: eight bytes at a time in an ordinary register.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/base/load.hpp"
#include "core/pretokenize/scan.hpp"
#include "core/pretokenize/scan_fallback.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

#include "core/pretokenize/scan_common.inc.hpp"

struct Isa : CommonIsa {
  using Bytes = std::array<std::uint64_t, 8>;
  static constexpr std::uint64_t kOnes = 0x0101010101010101, kHighs = 0x8080808080808080;

  static Bytes load(const std::uint8_t* text) {
    Bytes bytes;
    for (std::size_t i = 0; i < 8; ++i) {
      std::uint64_t word = tokpack::load<std::uint64_t>(text + 8 * i);
      if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
      bytes[i] = word;
    }
    return bytes;
  }

  // The highest bits of eight bytes, as eight bits, for each eight.
  template <class Highs>
  static std::uint64_t mask(const Bytes& bytes, Highs highs) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      bits |= ((highs(bytes[i]) & kHighs) >> 7) * 0x0102040810204080 >> 56 << (8 * i);
    }
    return bits;
  }
  static std::uint64_t in_range(const Bytes& bytes, std::uint8_t first, std::uint8_t count) {
    const std::uint64_t from = (0x80u - first) * kOnes, above = (0x80u - first - count) * kOnes;
    return mask(bytes, [=](std::uint64_t x) {
      const std::uint64_t low = x & ~kHighs;
      return (low + from) & ~(low + above) & ~x;
    });
  }
  static std::uint64_t equal(const Bytes& bytes, std::uint8_t byte) {
    return in_range(bytes, byte, 1);
  }
  static std::uint64_t ascii_letters(const Bytes& bytes) {
    Bytes folded = bytes;
    for (std::uint64_t& word : folded) word |= 0x20 * kOnes;
    return in_range(folded, 'a', 26);
  }
  // REQUIRES: 0x80 <= byte.
  static std::uint64_t at_least(const Bytes& bytes, std::uint8_t byte) {
    const std::uint64_t from = (0x100u - byte) * kOnes;
    return mask(bytes,
                [=](std::uint64_t x) { return byte == 0x80 ? x : ((x & ~kHighs) + from) & x; });
  }
  static std::uint64_t any(const Bytes& bytes, std::uint8_t bits) {
    return mask(bytes, [=](std::uint64_t x) {
      x &= bits * kOnes;
      return ((x & ~kHighs) + ~kHighs) | x;
    });
  }
};

#include "core/pretokenize/scan.inc.hpp"

}  // namespace

Scanner scanner_portable(const ScanShape& shape) { return scanner_of(shape); }

}  // namespace tokpack

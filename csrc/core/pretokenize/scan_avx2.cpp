// The scanners for AVX2.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/load.hpp"
#include "core/pretokenize/scan.hpp"
#include "core/pretokenize/scan_fallback.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {

#include "core/base/target_avx2.inc.hpp"

namespace {

#include "core/pretokenize/scan_x86.inc.hpp"

struct Isa : X86Isa {
  struct Bytes {
    __m256i low, high;
  };
  static Bytes load(const std::uint8_t* text) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(text)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text + 32))};
  }
  static __m256i all(std::uint8_t byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  static std::uint64_t mask(__m256i low, __m256i high) {
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
           std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(high))} << 32;
  }
  static std::uint64_t equal(Bytes bytes, std::uint8_t byte) {
    return mask(_mm256_cmpeq_epi8(bytes.low, all(byte)), _mm256_cmpeq_epi8(bytes.high, all(byte)));
  }
  static std::uint64_t at_most(__m256i low, __m256i high, std::uint8_t top) {
    return mask(_mm256_cmpeq_epi8(_mm256_min_epu8(low, all(top)), low),
                _mm256_cmpeq_epi8(_mm256_min_epu8(high, all(top)), high));
  }
  static std::uint64_t in_range(Bytes bytes, std::uint8_t first, std::uint8_t count) {
    return at_most(_mm256_sub_epi8(bytes.low, all(first)), _mm256_sub_epi8(bytes.high, all(first)),
                   static_cast<std::uint8_t>(count - 1));
  }
  static std::uint64_t at_least(Bytes bytes, std::uint8_t byte) {
    if (byte == 0x80) return mask(bytes.low, bytes.high);
    return ~at_most(bytes.low, bytes.high, static_cast<std::uint8_t>(byte - 1));
  }
  static std::uint64_t ascii_letters(Bytes bytes) {
    return in_range({_mm256_or_si256(bytes.low, all(0x20)), _mm256_or_si256(bytes.high, all(0x20))},
                    'a', 26);
  }
  static std::uint64_t any(Bytes bytes, std::uint8_t bits) {
    const __m256i zero = _mm256_setzero_si256();
    return ~mask(_mm256_cmpeq_epi8(_mm256_and_si256(bytes.low, all(bits)), zero),
                 _mm256_cmpeq_epi8(_mm256_and_si256(bytes.high, all(bits)), zero));
  }
};

#include "core/pretokenize/scan.inc.hpp"

}  // namespace

Scanner scanner_avx2(const ScanShape& shape) { return scanner_of(shape); }

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

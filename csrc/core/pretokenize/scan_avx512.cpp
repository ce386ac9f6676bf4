// The scanners for AVX-512.
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

#include "core/base/target_avx512.inc.hpp"

namespace {

#include "core/pretokenize/scan_x86.inc.hpp"

struct Isa : X86Isa {
  using Bytes = __m512i;
  static Bytes load(const std::uint8_t* text) { return _mm512_loadu_si512(text); }
  static __m512i all(std::uint8_t byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
  static std::uint64_t equal(Bytes bytes, std::uint8_t byte) {
    return _mm512_cmpeq_epi8_mask(bytes, all(byte));
  }
  static std::uint64_t in_range(Bytes bytes, std::uint8_t first, std::uint8_t count) {
    return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(bytes, all(first)), all(count));
  }
  static std::uint64_t at_least(Bytes bytes, std::uint8_t byte) {
    return _mm512_cmpge_epu8_mask(bytes, all(byte));
  }
  static std::uint64_t ascii_letters(Bytes bytes) {
    return in_range(_mm512_or_si512(bytes, all(0x20)), 'a', 26);
  }
  static std::uint64_t any(Bytes bytes, std::uint8_t bits) {
    return _mm512_test_epi8_mask(bytes, all(bits));
  }

  static std::size_t flatten(std::uint64_t mask, std::uint32_t base, std::uint32_t* out) {
    const __m512i iota = _mm512_set_epi8(
        63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41,
        40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18,
        17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i positions = _mm512_maskz_compress_epi8(mask, iota);
    const __m512i offset = _mm512_set1_epi32(static_cast<int>(base));
    const auto count = static_cast<std::size_t>(std::popcount(mask));
    const auto store = [&](std::size_t lane, __m128i part) __attribute__((always_inline)) {
      _mm512_storeu_si512(out + lane, _mm512_add_epi32(_mm512_cvtepu8_epi32(part), offset));
    };
    store(0, _mm512_castsi512_si128(positions));
    store(16, _mm512_extracti32x4_epi32(positions, 1));
    if (count > 32) [[unlikely]] {
      store(32, _mm512_extracti32x4_epi32(positions, 2));
      store(48, _mm512_extracti32x4_epi32(positions, 3));
    }
    return count;
  }
};

#include "core/pretokenize/scan.inc.hpp"

}  // namespace

Scanner scanner_avx512(const ScanShape& shape) { return scanner_of(shape); }

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

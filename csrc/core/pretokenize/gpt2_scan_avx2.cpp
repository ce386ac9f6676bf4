// The scanner of GPT-2's pattern for AVX2.
#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cstring>

#include "core/pretokenize/gpt2_scan.hpp"
#include "core/pretokenize/multibyte_letters.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {

#include "core/base/target_avx2.inc.hpp"

namespace {

struct Isa {
  static std::uint64_t below(__m256i low, __m256i high, std::uint8_t first, std::uint8_t count) {
    const auto half = [&](__m256i bytes) __attribute__((always_inline)) {
      const __m256i from = _mm256_sub_epi8(bytes, _mm256_set1_epi8(static_cast<char>(first)));
      const __m256i top = _mm256_set1_epi8(static_cast<char>(count - 1));
      const __m256i inside = _mm256_cmpeq_epi8(_mm256_min_epu8(from, top), from);
      return static_cast<std::uint32_t>(_mm256_movemask_epi8(inside));
    };
    return half(low) | std::uint64_t{half(high)} << 32;
  }

  static void classify(const std::uint8_t* text, Gpt2Scan::Block* block) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text + 32));
    const __m256i fold = _mm256_set1_epi8(0x20);
    block->letter = below(_mm256_or_si256(low, fold), _mm256_or_si256(high, fold), 'a', 26);
    block->number = below(low, high, '0', 10);
    block->blank = below(low, high, ' ', 1);
    block->space = block->blank | below(low, high, '\t', 5);
    block->apostrophe = below(low, high, '\'', 1);
    block->high = static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
                  std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(high))} << 32;
    block->lead = below(low, high, 0xC0, 64);
  }

  static MultibyteLetters multibyte_letters(const std::uint8_t*, std::uint64_t) { return {}; }

  static std::size_t flatten(std::uint64_t mask, std::uint32_t base, std::uint32_t* out) {
    const auto count = static_cast<std::size_t>(std::popcount(mask));
    for (std::uint32_t* end = out + count; out != end; mask &= mask - 1) {
      *out++ = base + static_cast<std::uint32_t>(std::countr_zero(mask));
    }
    return count;
  }
};

#include "core/pretokenize/gpt2_scan.inc.hpp"

}  // namespace

std::size_t gpt2_scan_avx2(Gpt2Scan& scan, std::uint32_t* starts) {
  return scan_gpt2(scan, starts);
}

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

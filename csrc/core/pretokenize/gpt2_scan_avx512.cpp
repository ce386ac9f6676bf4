// The scanner of GPT-2's pattern for AVX-512.
#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cstring>

#include "core/pretokenize/gpt2_scan.hpp"
#include "core/pretokenize/multibyte_letters.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {

#include "core/base/target_avx512.inc.hpp"

namespace {

struct Isa {
  static void classify(const std::uint8_t* text, Gpt2Scan::Block* block) {
    const __m512i bytes = _mm512_loadu_si512(text);
    const __m512i folded = _mm512_or_si512(bytes, _mm512_set1_epi8(0x20));
    const __m512i from_a = _mm512_sub_epi8(folded, _mm512_set1_epi8('a'));
    const __m512i from_0 = _mm512_sub_epi8(bytes, _mm512_set1_epi8('0'));
    const __m512i from_tab = _mm512_sub_epi8(bytes, _mm512_set1_epi8('\t'));
    block->letter = _mm512_cmplt_epu8_mask(from_a, _mm512_set1_epi8(26));
    block->number = _mm512_cmplt_epu8_mask(from_0, _mm512_set1_epi8(10));
    block->blank = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(' '));
    block->space = block->blank | _mm512_cmplt_epu8_mask(from_tab, _mm512_set1_epi8(5));
    block->apostrophe = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('\''));
    block->high = _mm512_movepi8_mask(bytes);
    block->lead = _mm512_cmpge_epu8_mask(bytes, _mm512_set1_epi8(static_cast<char>(0xC0)));
  }

  // REQUIRES: 65 readable bytes.
  static MultibyteLetters multibyte_letters(const std::uint8_t* text, std::uint64_t lead) {
    const __m512i bytes = _mm512_loadu_si512(text);
    const __m512i next = _mm512_loadu_si512(text + 1);
    const __m512i kind =
        _mm512_permutexvar_epi8(bytes, _mm512_load_si512(kMultibyteLetters.by_first));
    const __m512i exception =
        _mm512_permutexvar_epi8(next, _mm512_load_si512(kMultibyteLetters.by_second));
    const std::uint64_t sure =
        lead & ~_mm512_test_epi8_mask(_mm512_and_si512(kind, exception),
                                      _mm512_set1_epi8(MultibyteLetterTable::kFamilies));
    return {sure & _mm512_test_epi8_mask(kind, _mm512_set1_epi8(MultibyteLetterTable::kTwo)),
            sure & _mm512_movepi8_mask(kind)};
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

#include "core/pretokenize/gpt2_scan.inc.hpp"

}  // namespace

std::size_t gpt2_scan_avx512(Gpt2Scan& scan, std::uint32_t* starts) {
  return scan_gpt2(scan, starts);
}

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

// The kernel for AVX-512 with VBMI2.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/bpe/bpe_kernel.hpp"
#include "core/pretokenize/multibyte_letters.hpp"
#include "core/text/unicode.hpp"

// After all includes, so that no inline function of the library is compiled for this processor
// only.
#if defined(__clang__)
#pragma clang attribute push(                                                                                   \
    __attribute__((target(                                                                                      \
        "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt,aes"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt,aes")
#endif

namespace tokpack {
namespace {

#include "core/bpe/bpe_kernel_x86.inc.hpp"

struct Isa : AesIsa {
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
  static WideLetters wide_letters(const std::uint8_t* text, std::uint64_t lead) {
    const __m512i bytes = _mm512_loadu_si512(text);
    const __m512i next = _mm512_loadu_si512(text + 1);
    const __m512i kind = _mm512_permutexvar_epi8(bytes, _mm512_load_si512(kWideLetters.by_first));
    const __m512i exception =
        _mm512_permutexvar_epi8(next, _mm512_load_si512(kWideLetters.by_second));
    const std::uint64_t sure =
        lead & ~_mm512_test_epi8_mask(_mm512_and_si512(kind, exception),
                                      _mm512_set1_epi8(WideLetterTable::kFamilies));
    return {sure & _mm512_test_epi8_mask(kind, _mm512_set1_epi8(WideLetterTable::kTwo)),
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

  // Both slots in one comparison.
  template <class Id>
  static const WordSlot<Id>* find(const WordBucket<Id>& bucket, const WordKey& key) {
    const __m512i line = _mm512_load_si512(&bucket);
    const __m512i wanted =
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(key.bytes)));
    const unsigned equal = _mm512_cmpeq_epi64_mask(line, wanted);
    const unsigned found = equal & (equal >> 1) & 0x11;
    if (found == 0) [[unlikely]]
      return nullptr;
    return &bucket.slots[found >> 4];
  }

  // Bit i: pretoken i of kLongBlock is longer than a key.
  static unsigned long_ones(const std::uint32_t* starts) {
    const __m512i size =
        _mm512_sub_epi32(_mm512_loadu_si512(starts + 1), _mm512_loadu_si512(starts));
    return _mm512_cmpgt_epu32_mask(size, _mm512_set1_epi32(WordKey::kMaxSize));
  }

  static void store_kept(const std::uint16_t* symbols, std::uint64_t alive, std::uint16_t* out) {
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi16(static_cast<__mmask32>(alive),
                                                         _mm512_load_si512(symbols)));
  }
};

#include "core/bpe/word_lookup.inc.hpp"
#include "core/pretokenize/gpt2_scan.inc.hpp"

class Ranks {
 public:
  Ranks(const std::uint16_t* first, std::uint64_t pairs)
      : lanes_(_mm512_mask_blend_epi16(static_cast<__mmask32>(pairs), _mm512_set1_epi16(-1),
                                       _mm512_load_si512(first))) {}

  template <int kParts>
  std::uint32_t lowest() const {
    std::uint32_t best = lowest_of_eight(_mm512_castsi512_si128(lanes_), 0);
    if constexpr (kParts > 1) {
      best = std::min(best, lowest_of_eight(_mm512_extracti32x4_epi32(lanes_, 1), 8));
    }
    if constexpr (kParts > 2) {
      best = std::min(best, lowest_of_eight(_mm512_extracti32x4_epi32(lanes_, 2), 16));
      best = std::min(best, lowest_of_eight(_mm512_extracti32x4_epi32(lanes_, 3), 24));
    }
    return best;
  }

  void set(std::uint64_t lanes, std::uint32_t rank) {
    lanes_ =
        _mm512_mask_set1_epi16(lanes_, static_cast<__mmask32>(lanes), static_cast<short>(rank));
  }

 private:
  __m512i lanes_;
};

#include "core/bpe/merge_in_memory_avx512.inc.hpp"
#include "core/bpe/merge_in_register_x86.inc.hpp"

std::size_t merge_narrow(const NarrowMerges& merges, const std::uint8_t* text, std::size_t size,
                         std::uint16_t* out) {
  if (size <= 9) return merge_parts<1>(merges, text, size, out);
  if (size <= 17) return merge_parts<2>(merges, text, size, out);
  if (size <= 32) return merge_parts<4>(merges, text, size, out);
  return merge_many(merges, text, size, out);
}

}  // namespace

const Kernel& avx512_kernel() {
  static constexpr Kernel kernel{scan_gpt2,
                                 find_long,
                                 Isa::hash,
                                 kMaxNarrow,
                                 merge_narrow,
                                 lookup_window<std::uint16_t, std::uint16_t>,
                                 lookup_window<std::uint16_t, std::int32_t>,
                                 lookup_window<std::uint32_t, std::int32_t>};
  return kernel;
}

}  // namespace tokpack

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

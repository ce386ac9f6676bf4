// The kernel of the encoder for AVX-512 with VBMI2.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/bpe/bpe_kernel.hpp"

namespace tokpack {

#include "core/base/target_avx512.inc.hpp"

namespace {

#include "core/bpe/bpe_kernel_x86.inc.hpp"

struct Isa : X86Isa {
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

class Ranks {
 public:
  Ranks(const std::uint16_t* first, std::uint64_t pairs)
      : lanes_(_mm512_mask_blend_epi16(static_cast<__mmask32>(pairs), _mm512_set1_epi16(-1),
                                       _mm512_load_si512(first))) {}

  template <int kEights>
  std::uint32_t lowest() const {
    std::uint32_t best = lowest_of_eight(_mm512_castsi512_si128(lanes_), 0);
    if constexpr (kEights > 1) {
      best = std::min(best, lowest_of_eight(_mm512_extracti32x4_epi32(lanes_, 1), 8));
    }
    if constexpr (kEights > 2) {
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

std::size_t merge16(const MergeTable16& merges, const std::uint8_t* text, std::size_t size,
                    std::uint16_t* out) {
  if (size <= 9) return merge_in_register<1>(merges, text, size, out);
  if (size <= 17) return merge_in_register<2>(merges, text, size, out);
  if (size <= 32) return merge_in_register<4>(merges, text, size, out);
  return merge_in_memory(merges, text, size, out);
}

}  // namespace

const BpeKernel& bpe_kernel_avx512() {
  static constexpr BpeKernel kernel{find_long,
                                    Isa::hash,
                                    kMerge16Limit,
                                    merge16,
                                    lookup_window<std::uint16_t, std::uint16_t>,
                                    lookup_window<std::uint16_t, std::int32_t>,
                                    lookup_window<std::uint32_t, std::int32_t>};
  return kernel;
}

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

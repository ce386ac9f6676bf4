// The kernel of the encoder for AVX-512 with VBMI2.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/word_cache.hpp"

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

struct WideIsa {
  using Lanes = __m512i;
  static constexpr unsigned kLanes = 16;

  static Lanes iota(unsigned first) {
    return _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                            _mm512_set1_epi32(static_cast<int>(first)));
  }
  static Lanes load(const std::uint32_t* lanes) { return _mm512_load_si512(lanes); }
  static Lanes shift_left(Lanes lanes) { return _mm512_slli_epi32(lanes, 5); }
  static Lanes either(Lanes a, Lanes b) { return _mm512_or_si512(a, b); }
  static Lanes all(std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
  static Lanes least(Lanes a, Lanes b) { return _mm512_min_epu32(a, b); }
  static Lanes choose(std::uint32_t bits, Lanes then, Lanes otherwise) {
    return _mm512_mask_mov_epi32(otherwise, static_cast<__mmask16>(bits), then);
  }
  static std::uint32_t lowest(Lanes lanes) { return _mm512_reduce_min_epu32(lanes); }
  static void store_kept(const std::uint32_t* symbols, std::uint64_t alive, std::uint32_t* out) {
    const auto first = static_cast<__mmask16>(alive), second = static_cast<__mmask16>(alive >> 16);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(first, _mm512_load_si512(symbols)));
    if (second == 0) return;
    _mm512_storeu_si512(out + _mm_popcnt_u32(first),
                        _mm512_maskz_compress_epi32(second, _mm512_load_si512(symbols + 16)));
  }
};

#include "core/bpe/merge32_in_register.inc.hpp"

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
                                    kMerge32Limit,
                                    merge32,
                                    lookup_window<std::uint16_t, std::uint16_t>,
                                    lookup_window<std::uint16_t, std::int32_t>,
                                    lookup_window<std::uint32_t, std::int32_t>};
  return kernel;
}

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

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
  // What load_key() does for one pretoken, for those that begin at starts[0] to starts[3].
  template <class Id>
  static void four_keys(const std::uint8_t* text, const std::uint32_t* starts, WordKey* keys,
                        const WordBucket<Id>* first, std::uint64_t mask,
                        const WordBucket<Id>** buckets) {
    const auto load = [](const void* at) __attribute__((always_inline)) {
      return _mm_loadu_si128(static_cast<const __m128i*>(at));
    };
    const __m128i size =
        _mm_min_epu32(_mm_sub_epi32(load(starts + 1), load(starts)), _mm_set1_epi32(16));
    const __m512i which = _mm512_set_epi32(
        0x0C0C0C0C, 0x0C0C0C0C, 0x0C0C0C0C, 0x0C0C0C0C, 0x08080808, 0x08080808, 0x08080808,
        0x08080808, 0x04040404, 0x04040404, 0x04040404, 0x04040404, 0, 0, 0, 0);
    const __m512i sizes = _mm512_permutexvar_epi8(which, _mm512_castsi128_si512(size));
    const __m512i place =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    // Of a pretoken of 16 bytes and more nothing is kept, and 16 is no word's size.
    const __mmask64 keep =
        _mm512_cmplt_epu8_mask(place, _mm512_and_si512(sizes, _mm512_set1_epi8(15)));
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load(text + starts[0])),
                                                load(text + starts[1]), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(load(text + starts[2])),
                                                 load(text + starts[3]), 1);
    const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    const __m512i key =
        _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(keep, bytes), 0x8000800080008000, sizes);
    _mm512_store_si512(keys, key);
    const __m512i once = _mm512_aesenc_epi128(key, _mm512_set1_epi64(kRound[0]));
    const __m512i hash = _mm512_aesenc_epi128(once, _mm512_set1_epi64(kRound[1]));
    const __m512i at = _mm512_slli_epi64(
        _mm512_and_si512(hash, _mm512_set1_epi64(static_cast<long long>(mask))), 6);
    const __m512i addresses =
        _mm512_add_epi64(at, _mm512_set1_epi64(reinterpret_cast<long long>(first)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(buckets),
                        _mm512_castsi512_si256(_mm512_permutexvar_epi64(
                            _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6), addresses)));
  }

  // Both slots in one comparison.
  template <class Id>
  static const WordSlot<Id>* find(const WordBucket<Id>& bucket, const WordKey& key) {
    const __m512i line = _mm512_load_si512(&bucket);
    const __m512i wanted =
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(key.bytes)));
    // Bits 0 and 1 are the first key's halves, 4 and 5 the second's; of two equal ones comes a
    // carry.
    const unsigned equal = _mm512_mask_cmpeq_epi64_mask(0x33, line, wanted);
    const unsigned found = (equal + 0x11) & 0x44;
    if (found == 0) [[unlikely]]
      return nullptr;
    return &bucket.slots[found >> 6];
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

class Ranks16 {
 public:
  Ranks16(const std::uint16_t* first, std::uint64_t pairs)
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

#include "core/bpe/merge16_in_memory_avx512.inc.hpp"
#include "core/bpe/merge16_in_register_x86.inc.hpp"

struct Merge32Isa {
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

#include "core/bpe/merge32.inc.hpp"

std::size_t merge16(const MergeTable16& merges, const std::uint8_t* text, std::size_t size,
                    std::uint16_t* out) {
  if (size <= 9) return merge16_in_register<1>(merges, text, size, out);
  if (size <= 17) return merge16_in_register<2>(merges, text, size, out);
  if (size <= 32) return merge16_in_register<4>(merges, text, size, out);
  return merge16_in_memory(merges, text, size, out);
}

}  // namespace

const BpeKernel& bpe_kernel_avx512() {
  static constexpr BpeKernel kernel = make_kernel(kMerge16Limit, merge16, kMerge32Limit, merge32);
  return kernel;
}

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

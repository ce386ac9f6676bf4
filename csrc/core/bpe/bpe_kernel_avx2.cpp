// The kernel of the encoder for AVX2 with AES.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/word_cache.hpp"

namespace tokpack {

#include "core/base/target_avx2.inc.hpp"

namespace {

#include "core/bpe/bpe_kernel_x86.inc.hpp"

struct Isa : X86Isa {
  template <class Id>
  static const WordSlot<Id>* find(const WordBucket<Id>& bucket, const WordKey& key) {
    const __m128i wanted = _mm_load_si128(reinterpret_cast<const __m128i*>(key.bytes));
    const auto equal = [&](const WordSlot<Id>& slot) __attribute__((always_inline)) {
      const __m128i have = _mm_load_si128(reinterpret_cast<const __m128i*>(slot.key.bytes));
      return _mm_movemask_epi8(_mm_cmpeq_epi8(have, wanted)) == 0xFFFF;
    };
    const bool first = equal(bucket.slots[0]);
    const bool second = equal(bucket.slots[1]);
    if (!(first | second)) [[unlikely]]
      return nullptr;
    return &bucket.slots[second];
  }

  // Bit i: pretoken i is longer than a key.
  static unsigned long_ones(const std::uint32_t* starts) {
    const auto half = [&](const std::uint32_t* from) __attribute__((always_inline)) {
      const __m256i size =
          _mm256_sub_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 1)),
                           _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      const __m256i over = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(WordKey::kMaxSize));
      return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(over)));
    };
    return half(starts) | half(starts + 8) << 8;
  }

  static void store_kept(const std::uint16_t* symbols, std::uint64_t alive, std::uint16_t* out) {
    for (; alive != 0; alive &= alive - 1) *out++ = symbols[std::countr_zero(alive)];
  }
};

#include "core/bpe/word_lookup.inc.hpp"

class Ranks16 {
 public:
  Ranks16(const std::uint16_t* first, std::uint64_t pairs)
      : lanes_(_mm256_load_si256(reinterpret_cast<const __m256i*>(first))) {
    set(~pairs, MergeTable16::kNone);
  }

  template <int kEights>
  std::uint32_t lowest() const {
    std::uint32_t best = lowest_of_eight(_mm256_castsi256_si128(lanes_), 0);
    if constexpr (kEights > 1) {
      best = std::min(best, lowest_of_eight(_mm256_extracti128_si256(lanes_, 1), 8));
    }
    return best;
  }

  void set(std::uint64_t lanes, std::uint32_t rank) {
    const __m256i bits = _mm256_set_epi16(-32768, 16384, 8192, 4096, 2048, 1024, 512, 256, 128, 64,
                                          32, 16, 8, 4, 2, 1);
    const __m256i wanted = _mm256_set1_epi16(static_cast<short>(lanes));
    const __m256i chosen = _mm256_cmpeq_epi16(_mm256_and_si256(wanted, bits), bits);
    lanes_ = _mm256_blendv_epi8(lanes_, _mm256_set1_epi16(static_cast<short>(rank)), chosen);
  }

 private:
  __m256i lanes_;
};

#include "core/bpe/merge16_in_register_x86.inc.hpp"

struct Merge32Isa {
  using Lanes = __m256i;
  static constexpr unsigned kLanes = 8;

  static Lanes iota(unsigned first) {
    return _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                            _mm256_set1_epi32(static_cast<int>(first)));
  }
  static Lanes load(const std::uint32_t* lanes) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes));
  }
  static Lanes shift_left(Lanes lanes) { return _mm256_slli_epi32(lanes, 5); }
  static Lanes either(Lanes a, Lanes b) { return _mm256_or_si256(a, b); }
  static Lanes all(std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
  static Lanes least(Lanes a, Lanes b) { return _mm256_min_epu32(a, b); }
  static Lanes choose(std::uint32_t bits, Lanes then, Lanes otherwise) {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i chosen =
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each), each);
    return _mm256_blendv_epi8(otherwise, then, chosen);
  }
  static std::uint32_t lowest(Lanes lanes) {
    __m128i four = _mm_min_epu32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0xB1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
  }
  static void store_kept(const std::uint32_t* symbols, std::uint64_t alive, std::uint32_t* out) {
    for (; alive != 0; alive &= alive - 1) *out++ = symbols[std::countr_zero(alive)];
  }
};

#include "core/bpe/merge32.inc.hpp"

constexpr std::size_t kMaxPairs = 16;

std::size_t merge16(const MergeTable16& merges, const std::uint8_t* text, std::size_t size,
                    std::uint16_t* out) {
  if (size <= 9) return merge16_in_register<1>(merges, text, size, out);
  return merge16_in_register<2>(merges, text, size, out);
}

}  // namespace

const BpeKernel& bpe_kernel_avx2() {
  static constexpr BpeKernel kernel = make_kernel(kMaxPairs + 1, merge16, kMerge32Limit, merge32);
  return kernel;
}

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

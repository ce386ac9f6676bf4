// Permutation::forward_avx512(): many numbers of a permutation, eight in a vector.
#if defined(__x86_64__)

#include <immintrin.h>

#include "core/samples/permutation.hpp"

namespace tokpack {

#include "core/base/target_avx512.inc.hpp"

namespace {

inline __m512i all(std::uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }

// The round function; see permutation.cpp.
inline __m512i hash_halves(__m512i half, std::uint64_t key, unsigned bits) {
  const __m512i x = _mm512_mullo_epi64(_mm512_xor_si512(half, all(key)), all(kHashFactors[0]));
  const __m512i mixed = _mm512_xor_si512(x, _mm512_srli_epi64(x, 32));
  const __m512i hash = _mm512_mullo_epi64(mixed, all(kHashFactors[1]));
  return _mm512_srl_epi64(hash, _mm_cvtsi32_si128(static_cast<int>(64 - bits)));
}

}  // namespace

// Computes whole vectors: `values` behind `count` are overwritten, but never read.
void Permutation::forward_avx512(const Permutation& order, Batch& values, std::size_t count) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(order.low_bits_));
  const __m512i low_mask = all((std::uint64_t{1} << order.low_bits_) - 1);
  constexpr std::size_t kVectors = 4;  // computed in turn, to hide the latency of multiplications
  for (std::size_t begin = 0; begin < count; begin += 8 * kVectors) {
    __m512i high[kVectors], low[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      const __m512i value = _mm512_loadu_si512(values.data() + begin + 8 * v);
      high[v] = _mm512_srl_epi64(value, shift);
      low[v] = _mm512_and_si512(value, low_mask);
    }
    for (std::size_t r = 0; r < order.rounds_; r += 2) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        low[v] = _mm512_xor_si512(low[v], hash_halves(high[v], order.keys_[r], order.low_bits_));
      }
      for (std::size_t v = 0; v < kVectors; ++v) {
        high[v] =
            _mm512_xor_si512(high[v], hash_halves(low[v], order.keys_[r + 1], order.high_bits_));
      }
    }
    for (std::size_t v = 0; v < kVectors; ++v) {
      _mm512_storeu_si512(values.data() + begin + 8 * v,
                          _mm512_or_si512(_mm512_sll_epi64(high[v], shift), low[v]));
    }
  }
}

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

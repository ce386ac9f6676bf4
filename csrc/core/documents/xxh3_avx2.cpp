// XXH3 with AVX2: eight lanes are two vectors.
#if defined(__x86_64__)

#include <immintrin.h>

#include "core/documents/xxh3.hpp"

namespace tokpack::xxh3 {

#include "core/base/target_avx2.inc.hpp"

namespace {

constexpr std::size_t kVectors = 2;

__m256i read(const void* in) { return _mm256_loadu_si256(static_cast<const __m256i*>(in)); }

struct Lanes {
  __m256i of[kVectors];

  explicit Lanes(const std::uint64_t* in) : of{read(in), read(in + 4)} {}

  void store(std::uint64_t* out) const {
    for (std::size_t i = 0; i < kVectors; ++i) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * i), of[i]);
    }
  }

  void accumulate(const std::uint8_t* in, const std::uint8_t* secret) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      const __m256i value = read(in + 32 * i);
      const __m256i keyed = _mm256_xor_si256(value, read(secret + 32 * i));
      const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
      const __m256i swapped = _mm256_shuffle_epi32(value, 0x4E);  // lane i of i ^ 1
      of[i] = _mm256_add_epi64(of[i], _mm256_add_epi64(product, swapped));
    }
  }

  void scramble() {
    const __m256i prime = _mm256_set1_epi64x(static_cast<long long>(kScramble));
    for (std::size_t i = 0; i < kVectors; ++i) {
      const __m256i key = read(kSecret + kSecretBytes - kStripe + 32 * i);
      const __m256i mixed =
          _mm256_xor_si256(_mm256_xor_si256(of[i], _mm256_srli_epi64(of[i], 47)), key);
      const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
      of[i] = _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
    }
  }
};

void accumulate(std::uint64_t* lanes, const std::uint8_t* in, const std::uint8_t* secret,
                std::size_t stripes) {
  Lanes sums(lanes);
  for (std::size_t i = 0; i < stripes; ++i) sums.accumulate(in + i * kStripe, secret + 8 * i);
  sums.store(lanes);
}

void accumulate_blocks(std::uint64_t* lanes, const std::uint8_t* in, std::size_t blocks) {
  Lanes sums(lanes);
  for (; blocks-- > 0; in += kStripes * kStripe) {
    for (std::size_t i = 0; i < kStripes; ++i) sums.accumulate(in + i * kStripe, kSecret + 8 * i);
    sums.scramble();
  }
  sums.store(lanes);
}

}  // namespace

extern const Kernels kKernelsAvx2;
const Kernels kKernelsAvx2{accumulate, accumulate_blocks};

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack::xxh3

#endif  // defined(__x86_64__)

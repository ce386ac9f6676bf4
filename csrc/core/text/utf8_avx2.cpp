// UTF-8 validation with AVX2, 32 bytes at a time; the method is explained in utf8_errors.hpp.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/text/utf8_errors.hpp"

#define TOKPACK_AVX2 __attribute__((target("avx2,bmi,bmi2")))

namespace tokpack {
namespace {

using namespace utf8_errors;

TOKPACK_AVX2 inline __m256i broadcast256(const Table& table) {
  return _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data())));
}

template <int kBy>
TOKPACK_AVX2 inline __m256i shifted256(__m256i block, __m256i before) {
  return _mm256_alignr_epi8(block, _mm256_permute2x128_si256(before, block, 0x21), 16 - kBy);
}

TOKPACK_AVX2 inline __m256i errors256(__m256i block, __m256i before) {
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  const __m256i first = shifted256<1>(block, before);
  const __m256i first_high = _mm256_and_si256(_mm256_srli_epi16(first, 4), nibble);
  const __m256i second_high = _mm256_and_si256(_mm256_srli_epi16(block, 4), nibble);
  const __m256i a = _mm256_shuffle_epi8(broadcast256(kFirstHigh), first_high);
  const __m256i b = _mm256_shuffle_epi8(broadcast256(kFirstLow), _mm256_and_si256(first, nibble));
  const __m256i c = _mm256_shuffle_epi8(broadcast256(kSecondHigh), second_high);
  const __m256i pairs = _mm256_and_si256(_mm256_and_si256(a, b), c);
  const __m256i third = _mm256_subs_epu8(shifted256<2>(block, before), _mm256_set1_epi8(0x60));
  const __m256i fourth = _mm256_subs_epu8(shifted256<3>(block, before), _mm256_set1_epi8(0x70));
  const __m256i wanted =
      _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8(static_cast<char>(0x80)));
  return _mm256_xor_si256(pairs, wanted);
}

}  // namespace

// A block of ASCII is skipped unless the block before it ends inside a character. The last block is
// filled with zeros, which are ASCII: so a character that the end cuts off is an error there.
TOKPACK_AVX2 bool valid_utf8_avx2(const std::uint8_t* data, std::size_t size) {
  __m256i before = _mm256_setzero_si256();
  __m256i errors = _mm256_setzero_si256();
  std::uint32_t high_before = 0;
  for (std::size_t i = 0; i <= size; i += 32) {
    __m256i block = _mm256_setzero_si256();
    if (size - i >= 32) {
      block = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i));
    } else {
      std::memcpy(&block, data + i, size - i);
    }
    const auto high = static_cast<std::uint32_t>(_mm256_movemask_epi8(block));
    if ((high | high_before >> 31) != 0) {
      errors = _mm256_or_si256(errors, errors256(block, before));
    }
    before = block;
    high_before = high;
  }
  return _mm256_testz_si256(errors, errors) != 0;
}

}  // namespace tokpack

#endif  // defined(__x86_64__)

// UTF-8 validation with AVX-512, 64 bytes at a time; the method is explained in utf8_errors.hpp.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "core/text/utf8_errors.hpp"

#define TOKPACK_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2")))

namespace tokpack {
namespace {

using namespace utf8_errors;

// The masked intrinsics with every lane selected, here and below, do what the plain ones do; for
// the plain ones GCC gives a false warning about its own header.

TOKPACK_AVX512 inline __m512i broadcast512(const Table& table) {
  return _mm512_maskz_broadcast_i32x4(
      0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data())));
}

// Bytes of `block` moved up by kBy, the last ones of `before` in front.
template <int kBy>
TOKPACK_AVX512 inline __m512i shifted512(__m512i block, __m512i before) {
  return _mm512_alignr_epi8(block, _mm512_maskz_alignr_epi64(0xff, block, before, 6), 16 - kBy);
}

TOKPACK_AVX512 inline __m512i errors512(__m512i block, __m512i before) {
  const __m512i nibble = _mm512_set1_epi8(0x0f);
  const __m512i first = shifted512<1>(block, before);
  const __m512i first_high = _mm512_and_si512(_mm512_srli_epi16(first, 4), nibble);
  const __m512i second_high = _mm512_and_si512(_mm512_srli_epi16(block, 4), nibble);
  const __m512i a = _mm512_shuffle_epi8(broadcast512(kFirstHigh), first_high);
  const __m512i b = _mm512_shuffle_epi8(broadcast512(kFirstLow), _mm512_and_si512(first, nibble));
  const __m512i c = _mm512_shuffle_epi8(broadcast512(kSecondHigh), second_high);
  const __m512i pairs = _mm512_ternarylogic_epi64(a, b, c, 0x80);
  // Two continuations in a row are right exactly where the later one is the third or fourth byte of
  // a character: bit 7 of `wanted`, and of `pairs` where the two continuations are.
  const __m512i third = _mm512_subs_epu8(shifted512<2>(block, before), _mm512_set1_epi8(0x60));
  const __m512i fourth = _mm512_subs_epu8(shifted512<3>(block, before), _mm512_set1_epi8(0x70));
  const __m512i wanted =
      _mm512_and_si512(_mm512_or_si512(third, fourth), _mm512_set1_epi8(static_cast<char>(0x80)));
  return _mm512_xor_si512(pairs, wanted);
}

}  // namespace

// A block of ASCII is skipped unless the block before it ends inside a character. The last block is
// filled with zeros, which are ASCII: so a character that the end cuts off is an error there.
TOKPACK_AVX512 bool valid_utf8_avx512(const std::uint8_t* data, std::size_t size) {
  __m512i before = _mm512_setzero_si512();
  __m512i errors = _mm512_setzero_si512();
  std::uint64_t high_before = 0;
  for (std::size_t i = 0; i <= size; i += 64) {
    const __m512i block =
        size - i >= 64
            ? _mm512_loadu_si512(data + i)
            : _mm512_maskz_loadu_epi8(_bzhi_u64(~0ULL, static_cast<unsigned>(size - i)), data + i);
    const auto high = static_cast<std::uint64_t>(_mm512_movepi8_mask(block));
    if ((high | high_before >> 63) != 0) {
      errors = _mm512_or_si512(errors, errors512(block, before));
    }
    before = block;
    high_before = high;
  }
  return _mm512_test_epi8_mask(errors, errors) == 0;
}

}  // namespace tokpack

#endif  // defined(__x86_64__)

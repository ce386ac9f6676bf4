// UTF-8 validation with the lookup algorithm of Keiser and Lemire ("Validating UTF-8 in less than
// one instruction per byte", 2021): three tables of sixteen, indexed by the nibbles of a byte and
// of the byte before it, hold a set of possible errors each, and what all three agree on is an
// error.
#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/text/utf8.hpp"

#define TOKPACK_AVX2 __attribute__((target("avx2,bmi,bmi2")))
#define TOKPACK_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2")))

namespace tokpack {

bool valid_utf8_avx2(const std::uint8_t* data, std::size_t size);
bool valid_utf8_avx512(const std::uint8_t* data, std::size_t size);

namespace {

// Errors of a pair of bytes.
enum : std::uint8_t {
  kTooShort = 1 << 0,      // a lead, then no continuation
  kTooLong = 1 << 1,       // ASCII, then a continuation
  kOverlong3 = 1 << 2,     // e0 80..9f
  kTooLarge = 1 << 3,      // f4 90..bf, f5.. 90..bf
  kSurrogate = 1 << 4,     // ed a0..bf
  kOverlong2 = 1 << 5,     // c0 or c1, then a continuation
  kTooLarge1000 = 1 << 6,  // f5.. 80..8f
  kOverlong4 = 1 << 6,     // f0 80..8f
  kTwoConts = 1 << 7,      // two continuations: an error unless a lead of three or four came before
  kCarry = kTooShort | kTooLong |
      kTwoConts,  // errors that the low nibble of the first cannot rule out
};

using Table = std::array<std::uint8_t, 16>;

constexpr Table kFirstHigh = {
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTwoConts,
    kTwoConts,
    kTwoConts,
    kTwoConts,
    kTooShort | kOverlong2,
    kTooShort,
    kTooShort | kOverlong3 | kSurrogate,
    kTooShort | kTooLarge | kTooLarge1000 | kOverlong4,
};

constexpr Table kFirstLow = [] {
  Table table{};
  for (int low = 0; low < 16; ++low) {
    std::uint8_t errors = kCarry;
    if (low < 2) errors |= kOverlong2;
    if (low == 0) errors |= kOverlong3 | kOverlong4;
    if (low == 0xd) errors |= kSurrogate;
    if (low >= 4) errors |= kTooLarge;
    if (low >= 5) errors |= kTooLarge1000;
    table[static_cast<std::size_t>(low)] = errors;
  }
  return table;
}();

constexpr Table kSecondHigh = [] {
  Table table{};
  table.fill(kTooShort);
  constexpr std::uint8_t kAny = kTooLong | kOverlong2 | kTwoConts;
  table[0x8] = kAny | kOverlong3 | kTooLarge1000 | kOverlong4;
  table[0x9] = kAny | kOverlong3 | kTooLarge;
  table[0xa] = kAny | kSurrogate | kTooLarge;
  table[0xb] = kAny | kSurrogate | kTooLarge;
  return table;
}();

// The masked forms, here and below, say nothing more: GCC warns about its own header for the
// others.

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
  // The third and fourth byte of a character must be the second of two continuations, and no other.
  const __m512i third = _mm512_subs_epu8(shifted512<2>(block, before), _mm512_set1_epi8(0x60));
  const __m512i fourth = _mm512_subs_epu8(shifted512<3>(block, before), _mm512_set1_epi8(0x70));
  const __m512i wanted =
      _mm512_and_si512(_mm512_or_si512(third, fourth), _mm512_set1_epi8(static_cast<char>(0x80)));
  return _mm512_xor_si512(pairs, wanted);
}

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

// A block of ASCII needs no look unless the block before ends in the middle of a character. Zeros
// behind the end cut a character off that is not whole.

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

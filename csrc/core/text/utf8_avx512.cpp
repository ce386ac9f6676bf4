// UTF-8 validation with AVX-512, 64 bytes at a time.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "core/text/utf8_errors.hpp"

namespace tokpack {

#include "core/base/target_avx512.inc.hpp"

namespace {

struct Isa {
  using Bytes = __m512i;

  static Bytes all(std::uint8_t byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
  static Bytes load(const std::uint8_t* data, std::size_t left) {
    if (left >= 64) return _mm512_loadu_si512(data);
    return _mm512_maskz_loadu_epi8(_bzhi_u64(~0ULL, static_cast<unsigned>(left)), data);
  }
  static std::uint64_t high(Bytes bytes) { return _mm512_movepi8_mask(bytes); }
  static bool is_zero(Bytes bytes) { return _mm512_test_epi8_mask(bytes, bytes) == 0; }

  template <int kBy>
  static Bytes shifted(Bytes block, Bytes before) {
    return _mm512_alignr_epi8(block, _mm512_alignr_epi64(block, before, 6), 16 - kBy);
  }
  static Bytes low_nibbles(Bytes bytes) { return bytes & all(0x0f); }
  static Bytes high_nibbles(Bytes bytes) { return _mm512_srli_epi16(bytes, 4) & all(0x0f); }
  static Bytes look_up(const utf8_errors::Table& table, Bytes nibbles) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data()));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), nibbles);
  }
  static Bytes common(Bytes a, Bytes b, Bytes c) {
    return _mm512_ternarylogic_epi64(a, b, c, 0x80);
  }
  static Bytes minus(Bytes bytes, std::uint8_t byte) { return _mm512_subs_epu8(bytes, all(byte)); }
};

#include "core/text/utf8_x86.inc.hpp"

}  // namespace

bool valid_utf8_avx512(const std::uint8_t* data, std::size_t size) { return is_valid(data, size); }

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

// UTF-8 validation with AVX2, 32 bytes at a time.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/text/utf8_errors.hpp"

namespace tokpack {

#include "core/base/target_avx2.inc.hpp"

namespace {

struct Isa {
  using Bytes = __m256i;

  static Bytes all(std::uint8_t byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  static Bytes load(const std::uint8_t* data, std::size_t left) {
    if (left >= 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
    Bytes block = _mm256_setzero_si256();
    std::memcpy(&block, data, left);
    return block;
  }
  static std::uint32_t high(Bytes bytes) {
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes));
  }
  static bool is_zero(Bytes bytes) { return _mm256_testz_si256(bytes, bytes) != 0; }

  template <int kBy>
  static Bytes shifted(Bytes block, Bytes before) {
    return _mm256_alignr_epi8(block, _mm256_permute2x128_si256(before, block, 0x21), 16 - kBy);
  }
  static Bytes low_nibbles(Bytes bytes) { return bytes & all(0x0f); }
  static Bytes high_nibbles(Bytes bytes) { return _mm256_srli_epi16(bytes, 4) & all(0x0f); }
  static Bytes look_up(const utf8_errors::Table& table, Bytes nibbles) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data()));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), nibbles);
  }
  static Bytes common(Bytes a, Bytes b, Bytes c) { return a & b & c; }
  static Bytes minus(Bytes bytes, std::uint8_t byte) { return _mm256_subs_epu8(bytes, all(byte)); }
};

#include "core/text/utf8_x86.inc.hpp"

}  // namespace

bool valid_utf8_avx2(const std::uint8_t* data, std::size_t size) { return is_valid(data, size); }

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

// JSON strings with AVX2.
#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/json/json_escape.hpp"
#include "core/json/json_strings.hpp"

namespace tokpack {

#include "core/base/target_avx2.inc.hpp"

namespace {

struct Isa {
  using Bytes = __m256i;
  static Bytes zero() { return _mm256_setzero_si256(); }
  static Bytes load(const std::uint8_t* in) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
  }
  static void store(std::uint8_t* out, Bytes bytes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
  }
  static Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
  static bool high(Bytes bytes) { return _mm256_movemask_epi8(bytes) != 0; }
  static std::uint32_t specials(Bytes bytes) {
    const __m256i controls =
        _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, _mm256_set1_epi8(0x1f)), bytes);
    const __m256i marks = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('"')),
                                          _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\\')));
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_or_si256(controls, marks)));
  }
};

#include "core/json/json_strings_blocks.inc.hpp"

}  // namespace

extern const StringKernels kStringKernelsAvx2;
const StringKernels kStringKernelsAvx2{walk<true>, skip};

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

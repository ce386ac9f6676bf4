// JSON strings by blocks of 32 bytes: runs between escapes are copied with overlapping stores.
#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/json/json_escape.hpp"
#include "core/json/json_strings.hpp"

#define TOKPACK_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt")))

namespace tokpack {
namespace {

TOKPACK_AVX2 inline __m256i load(const std::uint8_t* in) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
}

TOKPACK_AVX2 inline void store(std::uint8_t* out, __m256i bytes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
}

// Quotes, backslashes and control characters.
TOKPACK_AVX2 inline std::uint64_t specials(__m256i bytes) {
  const __m256i controls = _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, _mm256_set1_epi8(0x1f)), bytes);
  const __m256i marks = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('"')),
                                        _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\\')));
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_or_si256(controls, marks)));
}

template <bool kCopy>
TOKPACK_AVX2 const std::uint8_t* walk(const std::uint8_t* in, const std::uint8_t* end,
                                      std::uint8_t** out_end, bool* high) {
  std::uint8_t* out = kCopy ? *out_end : nullptr;
  __m256i seen = _mm256_setzero_si256();
  // More than 64 bytes must be left: behind an escape at the end of the block another 32 bytes are
  // loaded.
  while (end - in > 64) {
    const __m256i bytes = load(in);
    seen = _mm256_or_si256(seen, bytes);
    std::uint64_t marks = specials(bytes);
    if constexpr (kCopy) store(out, bytes);
    std::uint32_t done = 0;  // bytes from `in` on that are done
    bool moved = false;      // `in` is already behind Unicode escapes
    while (marks != 0) {
      const auto at = static_cast<std::uint32_t>(std::countr_zero(marks));
      if constexpr (kCopy) out += at - done;
      if (in[at] == '"') {
        *high |= _mm256_movemask_epi8(seen) != 0;
        if constexpr (kCopy) *out_end = out;
        return in + at + 1;
      }
      if (in[at] != '\\') return nullptr;
      done = at + 2;
      if (const std::uint8_t plain = kUnescaped[in[at + 1]]; plain != 0) {
        if constexpr (kCopy) *out++ = plain;
      } else {
        if (in[at + 1] != 'u') return nullptr;
        in += at;
        do {
          if constexpr (kCopy) {
            in = copy_unicode_escape(in + 2, end, &out);
          } else {
            in = skip_unicode_escape(in + 2, end);
          }
          if (in == nullptr) return nullptr;
        } while (unicode_escape_follows(in, end));
        moved = true;
        break;
      }
      if constexpr (kCopy) store(out, load(in + done));
      marks &= ~0ULL << done;
    }
    if (moved) continue;
    if (done <= 32) {
      if constexpr (kCopy) out += 32 - done;
      in += 32;
    } else {
      in += done;
    }
  }
  // The scalar kernel does the rest, which is too short for loads of 32 bytes.
  *high |= _mm256_movemask_epi8(seen) != 0;
  const StringKernels& scalar = string_kernels(Level::kScalar);
  if constexpr (kCopy) {
    *out_end = out;
    return scalar.copy(in, end, out_end, high);
  } else {
    return scalar.skip(in, end, high);
  }
}

TOKPACK_AVX2 const std::uint8_t* skip(const std::uint8_t* in, const std::uint8_t* end, bool* high) {
  return walk<false>(in, end, nullptr, high);
}

}  // namespace

extern const StringKernels kStringKernelsAvx2;
const StringKernels kStringKernelsAvx2{walk<true>, skip};

}  // namespace tokpack

#endif  // defined(__x86_64__)

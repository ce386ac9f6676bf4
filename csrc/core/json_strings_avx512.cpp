// JSON strings by blocks of 64 bytes: simple escapes are replaced and squeezed out inside the
// register, so that neither their number nor their places cost a branch.
#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/json_escape.hpp"
#include "core/json_strings.hpp"

#define TOKPACK_AVX512                                                                      \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,popcnt," \
                        "lzcnt")))

namespace tokpack {
namespace {

constexpr std::array<std::uint8_t, 128> kAsciiUnescaped = [] {
  std::array<std::uint8_t, 128> table{};
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = kUnescaped[i];
  return table;
}();

// Which backslashes start an escape; bit 0 is not itself escaped.
TOKPACK_AVX512 inline std::uint64_t escape_starts(std::uint64_t backslashes) {
  if ((backslashes & backslashes << 1) == 0) [[likely]] {
    return backslashes;
  }
  std::uint64_t starts = 0;
  while (backslashes != 0) {
    const std::uint64_t first = backslashes & -backslashes;
    starts |= first;
    backslashes &= ~(first | first << 1);
  }
  return starts;
}

template <bool kCopy>
TOKPACK_AVX512 const std::uint8_t* walk(const std::uint8_t* in, const std::uint8_t* end,
                                        std::uint8_t** out_end, bool* high) {
  const __m512i quote = _mm512_set1_epi8('"');
  const __m512i backslash = _mm512_set1_epi8('\\');
  const __m512i blank = _mm512_set1_epi8(0x20);
  const __m512i unescaped_low = _mm512_loadu_si512(kAsciiUnescaped.data());
  const __m512i unescaped_high = _mm512_loadu_si512(kAsciiUnescaped.data() + 64);
  std::uint8_t* out = kCopy ? *out_end : nullptr;
  std::uint64_t seen_high = 0;
  std::uint64_t carry = 0;  // 1 when the byte at `in` is escaped
  for (;;) {
    const auto left = static_cast<std::size_t>(end - in);
    // Zeros behind the end are control characters: the walk cannot pass them.
    const __m512i bytes =
        left >= 64 ? _mm512_loadu_si512(in) : _mm512_maskz_loadu_epi8(_bzhi_u64(~0ULL, left), in);
    const std::uint64_t starts = escape_starts(_mm512_cmpeq_epi8_mask(bytes, backslash) & ~carry);
    const std::uint64_t escaped = starts << 1 | carry;
    const __m512i plain =
        _mm512_mask2_permutex2var_epi8(unescaped_low, bytes, escaped, unescaped_high);
    const std::uint64_t quotes = _mm512_cmpeq_epi8_mask(bytes, quote) & ~escaped;
    const std::uint64_t controls = _mm512_cmplt_epu8_mask(bytes, blank);
    const std::uint64_t high_bytes = static_cast<std::uint64_t>(_mm512_movepi8_mask(bytes));
    // The table looks at seven bits: an escaped byte >= 0x80 must not pass for its ASCII fellow.
    const std::uint64_t odd = escaped & (_mm512_testn_epi8_mask(plain, plain) | high_bytes);
    const std::uint64_t stops = quotes | controls | odd;
    if (stops == 0) {
      if constexpr (kCopy) {
        _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(~starts, plain));
        out += 64 - std::popcount(starts);
      }
      seen_high |= high_bytes;
      carry = starts >> 63;
      in += 64;
      continue;
    }
    const std::uint64_t stop = stops & -stops;
    const std::uint64_t before = stop - 1;
    seen_high |= high_bytes & before;
    if constexpr (kCopy) {
      const std::uint64_t kept = before & ~starts;
      _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(kept, plain));
      out += std::popcount(kept);
    }
    in += std::countr_zero(stop);
    if ((stop & quotes) != 0) {
      *high |= seen_high != 0;
      if constexpr (kCopy) *out_end = out;
      return in + 1;
    }
    if ((stop & escaped & ~controls) == 0 || *in != 'u') return nullptr;
    if constexpr (kCopy) {
      in = copy_unicode_escapes(in + 1, end, &out);
    } else {
      in = skip_unicode_escapes(in + 1, end);
    }
    if (in == nullptr) return nullptr;
    carry = 0;
  }
}

TOKPACK_AVX512 const std::uint8_t* skip(const std::uint8_t* in, const std::uint8_t* end,
                                        bool* high) {
  return walk<false>(in, end, nullptr, high);
}

}  // namespace

extern const StringKernels kStringKernelsAvx512;
const StringKernels kStringKernelsAvx512{walk<true>, skip};

}  // namespace tokpack

#endif  // defined(__x86_64__)

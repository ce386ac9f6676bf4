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

#define TOKPACK_AVX512                                                           \
  __attribute__((                                                                \
      target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,popcnt," \
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

// A mask in a general register. Without the barrier GCC turns what is done to it into masked
// compares, whose latency the next block waits for.
TOKPACK_AVX512 inline std::uint64_t to_register(__mmask64 mask) {
  std::uint64_t bits = mask;
  asm("" : "+r"(bits));
  return bits;
}

TOKPACK_AVX512 inline bool has_high(__m512i bytes) { return _mm512_movepi8_mask(bytes) != 0; }

template <bool kCopy>
TOKPACK_AVX512 const std::uint8_t* walk(const std::uint8_t* in, const std::uint8_t* end,
                                        std::uint8_t** out_end, bool* high) {
  const __m512i quote = _mm512_set1_epi8('"');
  const __m512i backslash = _mm512_set1_epi8('\\');
  const __m512i last_control = _mm512_set1_epi8(0x1f);
  const __m512i unescaped_low = _mm512_loadu_si512(kAsciiUnescaped.data());
  const __m512i unescaped_high = _mm512_loadu_si512(kAsciiUnescaped.data() + 64);
  std::uint8_t* out = kCopy ? *out_end : nullptr;
  __m512i seen = _mm512_setzero_si512();
  __m512i seen_escaped = _mm512_setzero_si512();
  std::uint64_t carry = 0;  // 1 when the byte at `in` is escaped
  for (;;) {
    const auto left = static_cast<std::size_t>(end - in);
    // Zeros behind the end are control characters: the walk cannot pass them.
    const __m512i bytes =
        left >= 64 ? _mm512_loadu_si512(in) : _mm512_maskz_loadu_epi8(_bzhi_u64(~0ULL, left), in);
    const std::uint64_t starts =
        escape_starts(to_register(_mm512_cmpeq_epi8_mask(bytes, backslash)) & ~carry);
    const std::uint64_t escaped = starts << 1 | carry;
    const __m512i plain =
        _mm512_mask2_permutex2var_epi8(unescaped_low, bytes, escaped, unescaped_high);
    // Zero where the walk must stop: at quotes and control characters, and, escaped, at what is not
    // a simple escape.
    const __m512i unescaped =
        _mm512_min_epu8(_mm512_xor_si512(bytes, quote), _mm512_subs_epu8(bytes, last_control));
    const __m512i marks = _mm512_mask_mov_epi8(unescaped, escaped, plain);
    const __mmask64 stops = _mm512_testn_epi8_mask(marks, marks);
    if (stops == 0) {
      if constexpr (kCopy) {
        _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(~starts, plain));
        out += 64 - std::popcount(starts);
      }
      seen = _mm512_or_si512(seen, bytes);
      seen_escaped = _mm512_mask_max_epu8(seen_escaped, escaped, seen_escaped, bytes);
      carry = starts >> 63;
      in += 64;
      continue;
    }
    const std::uint64_t stop = stops & -stops;
    const std::uint64_t before = stop - 1;
    seen = _mm512_mask_max_epu8(seen, before, seen, bytes);
    seen_escaped = _mm512_mask_max_epu8(seen_escaped, escaped & before, seen_escaped, bytes);
    if constexpr (kCopy) {
      const std::uint64_t kept = before & ~starts;
      _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(kept, plain));
      out += std::popcount(kept);
    }
    in += std::countr_zero(stop);
    if (in == end) return nullptr;
    // The table sees seven bits, in which an escaped byte >= 0x80 passes for its ASCII fellow.
    if (has_high(seen_escaped)) return nullptr;
    if ((stop & escaped) == 0) {
      if (*in != '"') return nullptr;
      *high |= has_high(seen);
      if constexpr (kCopy) *out_end = out;
      return in + 1;
    }
    if (*in != 'u') return nullptr;
    if constexpr (kCopy) {
      std::uint8_t* unicode_end = out;  // a copy, so that `out` can live in a register
      in = copy_unicode_escapes(in + 1, end, &unicode_end);
      out = unicode_end;
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

// JSON strings with AVX-512, 64 bytes at a time: simple escapes are replaced, and the bytes between
// moved together, inside a register. So neither their number nor their places cost a branch.
#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/json/json_escape.hpp"
#include "core/json/json_strings.hpp"

namespace tokpack {

#include "core/base/target_avx512.inc.hpp"

namespace {

using AsciiTable = std::array<std::uint8_t, 128>;

template <class T>
constexpr AsciiTable ascii_part(const std::array<T, 256>& full) {
  AsciiTable table{};
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::uint8_t>(full[i]);
  return table;
}

constexpr AsciiTable kAsciiUnescaped = ascii_part(kUnescaped);
constexpr AsciiTable kAsciiHexDigit = ascii_part(kHexDigit);

constexpr AsciiTable kPreviousByte = [] {
  AsciiTable table{};
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::uint8_t>(i - 1);
  return table;
}();

// Which of the backslashes start an escape. REQUIRES: bit 0 is not itself escaped.
inline std::uint64_t escape_starts(std::uint64_t backslashes) {
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
inline std::uint64_t to_register(__mmask64 mask) {
  std::uint64_t bits = mask;
  asm("" : "+r"(bits));
  return bits;
}

// A block with some of its \uXXXX decoded.
struct UnicodeBlock {
  __m512i content;
  std::uint64_t decoded;  // their backslashes
  std::uint64_t dropped;  // their bytes that are removed, besides the backslashes
};

inline __m512i repeat(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }

// Decodes the \uXXXX at the backslashes `begins` that are well-formed, lie in the block as a whole
// and are no surrogates. The UTF-8 bytes take the places of the digits that they are made from.
template <bool kCopy>
inline UnicodeBlock decode_unicode(__m512i bytes, __m512i content, std::uint64_t begins) {
  const __m512i digits = _mm512_permutex2var_epi8(_mm512_loadu_si512(kAsciiHexDigit.data()), bytes,
                                                  _mm512_loadu_si512(kAsciiHexDigit.data() + 64));
  const std::uint64_t bad = _mm512_movepi8_mask(_mm512_or_si512(digits, bytes));
  const __m512i low = _mm512_and_si512(digits, repeat(0x0f));
  const __m512i before = _mm512_permutexvar_epi8(_mm512_loadu_si512(kPreviousByte.data()), low);
  // A digit, with the one before it in the high half.
  const __m512i pairs = _mm512_or_si512(low, _mm512_slli_epi16(before, 4));
  // Lone surrogates are allowed in strings that are only skipped.
  const std::uint64_t surrogates =
      !kCopy ? 0 : _mm512_cmpeq_epi8_mask(_mm512_and_si512(pairs, repeat(0xf8)), repeat(0xd8));
  const std::uint64_t decoded =
      begins & ~0ULL >> 5 & ~(bad >> 2 | bad >> 3 | bad >> 4 | bad >> 5) & ~(surrogates >> 3);
  const std::uint64_t three = decoded & _mm512_cmpge_epu8_mask(pairs, repeat(0x08)) >> 3;
  const std::uint64_t two =
      decoded & (_mm512_test_epi8_mask(pairs, pairs) >> 3 | _mm512_movepi8_mask(pairs) >> 5);
  const __m512i first = _mm512_or_si512(low, repeat(0xe0));
  const __m512i middle = _mm512_and_si512(_mm512_srli_epi16(pairs, 2), repeat(0x3f));
  const __m512i last = _mm512_or_si512(_mm512_and_si512(pairs, repeat(0x3f)), repeat(0x80));
  content = _mm512_mask_mov_epi8(content, three << 2, first);
  content = _mm512_mask_mov_epi8(content, two << 4, _mm512_or_si512(middle, repeat(0xc0)));
  content = _mm512_mask_mov_epi8(content, three << 4, _mm512_or_si512(middle, repeat(0x80)));
  content = _mm512_mask_mov_epi8(content, decoded << 5, pairs);
  content = _mm512_mask_mov_epi8(content, two << 5, last);
  return {content, decoded,
          decoded << 1 | decoded << 3 | (decoded & ~three) << 2 | (decoded & ~two) << 4};
}

inline bool has_high(__m512i bytes) { return _mm512_movepi8_mask(bytes) != 0; }

// Writes the kept bytes one after the other, and overwrites what follows: 64 bytes in all.
inline std::uint8_t* put(std::uint8_t* out, __m512i content, std::uint64_t kept) {
  _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(kept, content));
  return out + std::popcount(kept);
}

template <bool kCopy>
const std::uint8_t* walk(const std::uint8_t* in, const std::uint8_t* end, std::uint8_t** out_end,
                         bool* high) {
  const __m512i unescaped_low = _mm512_loadu_si512(kAsciiUnescaped.data());
  const __m512i unescaped_high = _mm512_loadu_si512(kAsciiUnescaped.data() + 64);
  std::uint8_t* out = kCopy ? *out_end : nullptr;
  __m512i seen = _mm512_setzero_si512();
  __m512i seen_escaped = _mm512_setzero_si512();
  std::uint64_t carry = 0;  // 1 when the byte at `in` is escaped
  for (;;) {
    const auto left = static_cast<std::size_t>(end - in);
    // After the end zeros are loaded, which stop the walk as control characters do.
    const __m512i bytes =
        left >= 64 ? _mm512_loadu_si512(in) : _mm512_maskz_loadu_epi8(_bzhi_u64(~0ULL, left), in);
    const std::uint64_t starts =
        escape_starts(to_register(_mm512_cmpeq_epi8_mask(bytes, repeat('\\'))) & ~carry);
    const std::uint64_t escaped = starts << 1 | carry;
    __m512i content = _mm512_mask2_permutex2var_epi8(unescaped_low, bytes, escaped, unescaped_high);
    std::uint64_t dropped = starts;
    // Zero where the walk must stop: at quotes and control characters, and, escaped, at what is not
    // a simple escape.
    const __m512i unescaped = _mm512_min_epu8(_mm512_xor_si512(bytes, repeat('"')),
                                              _mm512_subs_epu8(bytes, repeat(0x1f)));
    const __m512i marks = _mm512_mask_mov_epi8(unescaped, escaped, content);
    std::uint64_t stops = _mm512_testn_epi8_mask(marks, marks);
    if (stops != 0) {
      const std::uint64_t unicode = starts & _mm512_cmpeq_epi8_mask(bytes, repeat('u')) >> 1;
      if (unicode != 0) {
        const UnicodeBlock block = decode_unicode<kCopy>(bytes, content, unicode);
        content = block.content;
        dropped |= block.dropped;
        stops = (stops & ~(block.decoded << 1)) | (unicode & ~block.decoded);
      }
    }
    if (stops == 0) {
      seen = _mm512_or_si512(seen, bytes);
      seen_escaped = _mm512_mask_max_epu8(seen_escaped, escaped, seen_escaped, bytes);
      if constexpr (kCopy) out = put(out, content, ~dropped);
      carry = starts >> 63;
      in += 64;
      continue;
    }
    const std::uint64_t stop = stops & -stops;
    const std::uint64_t before = stop - 1;
    seen = _mm512_mask_max_epu8(seen, before, seen, bytes);
    seen_escaped = _mm512_mask_max_epu8(seen_escaped, escaped & before, seen_escaped, bytes);
    if constexpr (kCopy) out = put(out, content, before & ~dropped);
    // The table is indexed by seven bits of a byte, so that an escaped byte >= 0x80 was taken for
    // an ASCII character.
    if (has_high(seen_escaped)) return nullptr;
    const int at = std::countr_zero(stops);
    in += at;
    if (in == end) return nullptr;
    if (((escaped | starts) & stop) == 0) {
      if (*in != '"') return nullptr;
      *high |= has_high(seen);
      if constexpr (kCopy) *out_end = out;
      return in + 1;
    }
    // This is the backslash of a \uXXXX that was not decoded, or its u if the backslash ended the
    // previous block.
    const bool at_backslash = (starts & stop) != 0;
    carry = 0;
    if (at_backslash && at > 64 - 6) continue;
    if (!at_backslash && *in != 'u') return nullptr;
    if constexpr (kCopy) {
      std::uint8_t* escape_end = out;  // a copy, so that the compiler keeps `out` in a register
      in = copy_unicode_escape(in + 1 + at_backslash, end, &escape_end);
      out = escape_end;
    } else {
      in = skip_unicode_escape(in + 1 + at_backslash, end);
    }
    if (in == nullptr) return nullptr;
  }
}

const std::uint8_t* skip(const std::uint8_t* in, const std::uint8_t* end, bool* high) {
  return walk<false>(in, end, nullptr, high);
}

}  // namespace

extern const StringKernels kStringKernelsAvx512;
const StringKernels kStringKernelsAvx512{walk<true>, skip};

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

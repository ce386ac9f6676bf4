// Matching one character after the other, as a regular expression engine does: classes of
// characters, runs, white space and contractions. The reference pretokenizers are made of it, and
// the scanners ask it where masks of 64 bytes do not suffice.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

namespace tokpack::matching {

struct Text {
  const std::uint8_t* data;
  std::size_t size;
};

// A bit beside those of CharClass: the text ends here, or the segment that the pattern is applied
// to.
inline constexpr std::uint32_t kEnd = 256;

// `Classes`, a template parameter below, maps characters to bits of CharClass: ascii() a byte below
// 0x80, of() any other code point. Both give kEnd where an earlier pre-tokenizer of a Sequence has
// cut. kHasAscii: whether ASCII letters are letters in it.
struct PlainClasses {
  static constexpr bool kHasAscii = true;
  static std::uint32_t ascii(std::uint8_t byte) { return ascii_class(byte); }
  static std::uint32_t of(std::uint32_t code_point) { return char_class(code_point); }
};

// For the segments between numbers, and between the other characters for which kCuts() is true.
template <bool kCuts(std::uint32_t)>
struct ClassesBetweenNumbers {
  static constexpr bool kHasAscii = true;
  static std::uint32_t ascii(std::uint8_t byte) {
    const std::uint32_t bits = ascii_class(byte);
    return bits & kNumber ? kEnd : bits;
  }
  static std::uint32_t of(std::uint32_t code_point) {
    const std::uint32_t bits = char_class(code_point);
    return (bits & kNumber) || kCuts(code_point) ? kEnd : bits;
  }
};

struct Char {
  std::uint32_t bits;
  std::uint32_t size;
};

template <class Classes>
Char char_at(Text text, std::size_t pos) {
  if (pos >= text.size) return {kEnd, 0};
  const std::uint8_t byte = text.data[pos];
  if (byte < 0x80) return {Classes::ascii(byte), 1};
  const CodePoint c = decode_utf8(text.data + pos);
  return {Classes::of(c.value), c.size};
}

// End of the run of characters whose bits satisfy `belongs`.
template <class Classes, class Predicate>
std::size_t skip_while(Text text, std::size_t pos, Predicate belongs) {
  while (pos < text.size) {
    const std::uint8_t byte = text.data[pos];
    if (byte < 0x80) {
      if (!belongs(Classes::ascii(byte))) return pos;
      ++pos;
    } else {
      const CodePoint c = decode_utf8(text.data + pos);
      if (!belongs(Classes::of(c.value))) return pos;
      pos += c.size;
    }
  }
  return pos;
}

// High bit of each byte of x that is a..z, or a letter of either case with kAnyCase.
template <bool kAnyCase>
std::uint64_t ascii_letters(std::uint64_t x) {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  const std::uint64_t low = ((kAnyCase ? x | 0x20 * kOnes : x) & 0x7F * kOnes);
  const std::uint64_t from_a = low + (0x80 - 'a') * kOnes;
  const std::uint64_t above_z = low + (0x7F - 'z') * kOnes;
  return from_a & ~above_z & ~x & 0x80 * kOnes;
}

// End of the run of ASCII letters, eight at a time, without a branch on their number. May return
// before the end of the run where fewer than eight bytes of text are left.
template <bool kAnyCase>
std::size_t skip_ascii_letters(Text text, std::size_t pos) {
  if constexpr (std::endian::native == std::endian::little) {
    while (pos + 8 <= text.size) {
      std::uint64_t x;
      std::memcpy(&x, text.data + pos, 8);
      const std::uint64_t others = ascii_letters<kAnyCase>(x) ^ 0x8080808080808080;
      if (others) return pos + static_cast<std::size_t>(std::countr_zero(others) / 8);
      pos += 8;
    }
  }
  return pos;
}

// End of the run of characters that have a bit of kMask.
template <class Classes, std::uint32_t kMask>
std::size_t skip_any(Text text, std::size_t pos) {
  if constexpr ((kMask & kLetter) && Classes::kHasAscii) pos = skip_ascii_letters<true>(text, pos);
  return skip_while<Classes>(text, pos, [](std::uint32_t bits) { return (bits & kMask) != 0; });
}

// End of the run of characters that have no bit of kMask.
template <class Classes, std::uint32_t kMask>
std::size_t skip_none(Text text, std::size_t pos) {
  return skip_while<Classes>(text, pos,
                             [](std::uint32_t bits) { return (bits & (kMask | kEnd)) == 0; });
}

// \s+(?!\S)|\s+ where a space is at pos: the last space is left to what follows, if anything does.
// With kLines the alternative \s*[\r\n]+ comes before.
template <class Classes, bool kLines>
std::size_t spaces(Text text, std::size_t pos) {
  std::size_t after_newline = 0, last = pos, end = pos;
  Char c = char_at<Classes>(text, pos);
  while (c.bits & kSpace) {
    last = end;
    end += c.size;
    if (kLines && (c.bits & kNewline)) after_newline = end;
    c = char_at<Classes>(text, end);
  }
  if (after_newline) return after_newline;
  return (c.bits & kEnd) || last == pos ? end : last;
}

// Size of '(?:[sdmt]|ll|ve|re) at pos, where an apostrophe is; 0 if there is none.
inline std::size_t contraction(Text text, std::size_t pos) {
  const std::size_t left = text.size - pos;
  if (left < 2) return 0;
  const std::uint8_t a = text.data[pos + 1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (left < 3) return 0;
  const std::uint8_t b = text.data[pos + 2];
  return (a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e') ? 3 : 0;
}

// Size of (?i:'s|'t|'re|'ve|'m|'ll|'d) at pos; 0 if there is none. U+017F is a lower-case s.
inline std::size_t contraction_any_case(Text text, std::size_t pos) {
  const std::size_t left = text.size - pos;
  if (left < 2 || text.data[pos] != '\'') return 0;
  const int a = text.data[pos + 1] | 0x20;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (left < 3) return 0;
  const int b = text.data[pos + 2] | 0x20;
  if ((a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e')) return 3;
  return text.data[pos + 1] == 0xC5 && text.data[pos + 2] == 0xBF ? 3 : 0;
}

// The Digits pre-tokenizer uses Rust's char::is_numeric, which in tokenizers 0.23 knows Unicode 17.
// These are the numbers that Unicode 16 lacks.
inline bool is_new_number(std::uint32_t c) {
  return (c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6);
}

// The second Split of DeepSeek-V3: [一-龥぀-ゟ゠-ヿ]+
inline bool is_cjk(std::uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

// Whether the character at pos is a letter without case, or a mark.
inline bool is_uncased(Text text, std::size_t pos) {
  const std::uint32_t bits = char_at<PlainClasses>(text, pos).bits;
  return (bits & (kLetter | kMark)) && !(bits & (kUpper | kLower));
}

// The end of the pretoken that begins at text[pos], for each pattern that treats line ends
// separately. REQUIRES: pos < text.size.
using NextPretoken = std::size_t(Text text, std::size_t pos);
NextPretoken next_llama3, next_qwen2, next_qwen35, next_o200k, next_tekken, next_deepseek_v3;

}  // namespace tokpack::matching

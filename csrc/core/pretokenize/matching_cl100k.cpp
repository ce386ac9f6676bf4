// The reference pretokenizers whose patterns treat line ends separately: cl100k and those made
// after it (Llama 3, Qwen), o200k and Tekken, DeepSeek-V3.
//
// The alternatives of a pattern, written out in pretokenize.hpp, are tried in their order.
#include "core/pretokenize/matching.hpp"

namespace tokpack::matching {
namespace {

// \p{N}{1,kMost} where a number is at pos.
template <int kMost>
std::size_t digits(Text text, std::size_t pos) {
  for (int i = 0; i < kMost; ++i) {
    const Char c = char_at<PlainClasses>(text, pos);
    if (!(c.bits & kNumber)) break;
    pos += c.size;
  }
  return pos;
}

// kWord: the classes of characters that words consist of. kDigits: the most numbers in a pretoken.
template <std::uint32_t kWord, int kDigits>
std::size_t next_cl100k(Text text, std::size_t pos) {
  const std::uint8_t byte = text.data[pos];
  if (byte == '\'') {
    if (const std::size_t size = contraction_any_case(text, pos)) return pos + size;
  }
  const Char c = char_at<PlainClasses>(text, pos);
  const std::size_t second = pos + c.size;
  if (c.bits & kWord) return skip_any<PlainClasses, kWord>(text, second);
  if (c.bits & kNumber) return digits<kDigits>(text, pos);
  if (c.bits & kNewline) return spaces<PlainClasses, true>(text, pos);
  const Char d = char_at<PlainClasses>(text, second);
  if (d.bits & kWord) return skip_any<PlainClasses, kWord>(text, second + d.size);
  constexpr std::uint32_t kNoSymbol = kSpace | kNumber | kWord;
  const bool symbol = !(c.bits & kSpace) || (byte == ' ' && !(d.bits & (kNoSymbol | kEnd)));
  if (!symbol) return spaces<PlainClasses, true>(text, pos);
  const std::size_t end = skip_none<PlainClasses, kNoSymbol>(text, second);
  return skip_any<PlainClasses, kNewline>(text, end);
}

bool is_upper(std::uint32_t bits) { return (bits & (kLetter | kMark)) && !(bits & kLower); }
bool is_lower(std::uint32_t bits) { return (bits & (kLetter | kMark)) && !(bits & kUpper); }

struct Word {
  std::size_t end;  // 0: no match
  bool first;       // matched by the first of the two alternatives
};

// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at pos, else the same with + for * and
// * for +.
Word cased_word(Text text, std::size_t pos) {
  std::size_t end = pos;
  std::size_t after_uncased = 0;
  Char c = char_at<PlainClasses>(text, pos);
  while (is_upper(c.bits)) {
    end += c.size;
    if (!(c.bits & kUpper)) after_uncased = end;
    c = char_at<PlainClasses>(text, end);
  }
  if (c.bits & kLower) {
    end = skip_ascii_letters<false>(text, end + c.size);
    return {skip_while<PlainClasses>(text, end, is_lower), true};
  }
  // The engine backtracks in the first alternative until the last character fits its second half.
  if (after_uncased) return {after_uncased, true};
  return {end > pos ? end : 0, false};
}

template <bool kContractions>
std::size_t word_end(Text text, Word word) {
  return kContractions ? word.end + contraction_any_case(text, word.end) : word.end;
}

template <bool kContractions, int kDigits>
std::size_t next_cased(Text text, std::size_t pos) {
  const Char c = char_at<PlainClasses>(text, pos);
  if (c.bits & kLetter) return word_end<kContractions>(text, cased_word(text, pos));
  if (c.bits & kNumber) return digits<kDigits>(text, pos);
  if (c.bits & kNewline) return spaces<PlainClasses, true>(text, pos);
  const std::size_t second = pos + c.size;
  const Char d = char_at<PlainClasses>(text, second);
  if (d.bits & (kLetter | kMark)) {
    const Word word = cased_word(text, second);
    // A mark is a word by itself for the first alternative, before the second one is tried.
    if (word.first || !(c.bits & kMark)) return word_end<kContractions>(text, word);
  }
  if (c.bits & kMark) return word_end<kContractions>(text, cased_word(text, pos));
  constexpr std::uint32_t kNoSymbol = kSpace | kLetter | kNumber;
  const bool symbol =
      !(c.bits & kSpace) || (text.data[pos] == ' ' && !(d.bits & (kNoSymbol | kEnd)));
  if (!symbol) return spaces<PlainClasses, true>(text, pos);
  std::size_t end = skip_none<PlainClasses, kNoSymbol>(text, second);
  while (end < text.size &&
         (text.data[end] == '\r' || text.data[end] == '\n' || text.data[end] == '/')) {
    ++end;
  }
  return end;
}

struct CjkClasses {
  static constexpr bool kHasAscii = false;
  static std::uint32_t ascii(std::uint8_t) { return kEnd; }
  static std::uint32_t of(std::uint32_t c) { return is_cjk(c) ? char_class(c) : kEnd; }
};

// For what the first two Splits of DeepSeek-V3, numbers and CJK, leave over.
using RestClasses = ClassesBetweenNumbers<is_cjk>;

bool is_ascii_letter(std::uint8_t byte) {
  const int lower = byte | 0x20;
  return lower >= 'a' && lower <= 'z';
}

// Controls, unassigned and private characters match no alternative, but for one right before a
// word. A run of them is one pretoken, without the last one where a word follows.
template <class Classes>
std::size_t unmatched(Text text, std::size_t pos) {
  std::size_t last = pos;
  std::size_t end = pos;
  Char c = char_at<Classes>(text, pos);
  while (c.bits == 0) {
    last = end;
    end += c.size;
    c = char_at<Classes>(text, end);
  }
  return c.bits & (kLetter | kMark) ? last : end;
}

// The third Split of DeepSeek-V3, within one piece that the first two left.
template <class Classes>
std::size_t next_in_piece(Text text, std::size_t pos) {
  const Char c = char_at<Classes>(text, pos);
  const std::size_t second = pos + c.size;
  const std::uint8_t byte = text.data[pos];
  if (byte < 0x80 && (c.bits & kSymbol) && second < text.size &&
      is_ascii_letter(text.data[second])) {
    std::size_t end = skip_ascii_letters<true>(text, second + 1);
    while (end < text.size && is_ascii_letter(text.data[end])) ++end;
    return end;
  }
  constexpr std::uint32_t kWord = kLetter | kMark;
  if (c.bits & kWord) return skip_any<Classes, kWord>(text, second);
  if (c.bits & kSymbol) {
    const std::size_t end = skip_any<Classes, kSymbol>(text, second);
    return skip_any<Classes, kNewline>(text, end);
  }
  if (c.bits & kNewline) return spaces<Classes, true>(text, pos);
  const Char d = char_at<Classes>(text, second);
  if (d.bits & kWord) return skip_any<Classes, kWord>(text, second + d.size);
  if (byte == ' ' && (d.bits & kSymbol)) {
    const std::size_t end = skip_any<Classes, kSymbol>(text, second);
    return skip_any<Classes, kNewline>(text, end);
  }
  if (c.bits & kSpace) return spaces<Classes, true>(text, pos);
  return unmatched<Classes>(text, pos);
}

}  // namespace

std::size_t next_llama3(Text text, std::size_t pos) { return next_cl100k<kLetter, 3>(text, pos); }
std::size_t next_qwen2(Text text, std::size_t pos) { return next_cl100k<kLetter, 1>(text, pos); }
std::size_t next_qwen35(Text text, std::size_t pos) {
  return next_cl100k<kLetter | kMark, 1>(text, pos);
}
std::size_t next_o200k(Text text, std::size_t pos) { return next_cased<true, 3>(text, pos); }
std::size_t next_tekken(Text text, std::size_t pos) { return next_cased<false, 1>(text, pos); }
std::size_t next_deepseek_v3(Text text, std::size_t pos) {
  const std::uint32_t c = decode_utf8(text.data + pos).value;
  if (is_cjk(c)) return next_in_piece<CjkClasses>(text, pos);
  if (char_class(c) & kNumber) return digits<3>(text, pos);
  return next_in_piece<RestClasses>(text, pos);
}

}  // namespace tokpack::matching

#include "core/documents/words.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/documents/ngrams.hpp"
#include "core/text/case_folds.hpp"
#include "core/text/code_points.hpp"
#include "core/text/normal_forms.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kLongestTag = 256;
constexpr std::uint32_t kLimit = 0x32400;  // of code points that may be letters

// What a character is to words. A character may be several of these.
enum Item : std::uint32_t {
  kLetter = 0,
  kCharacter = 1u << 30,  // of a script without spaces
  kNothing = 2u << 30,    // with the character if that may close a list marker
  kSpace = 3u << 30,
};
constexpr std::uint32_t kKind = 3u << 30;
constexpr std::uint32_t kPunctuation = 1u << 29;  // of kNothing and kSpace: punctuation or a mark
constexpr std::uint32_t kSeveral = 1u << 28;      // of kNothing: the rest is a place in the pool
constexpr std::uint32_t kCodePoint = 0x1FFFFF;

// Punctuation and symbols that divide words, as white space does.
constexpr std::u32string_view kDividing = U"/|\u2012\u2013\u2014\u2015\u2022\u2026\u2E3A\u2E3B";

// Scripts without spaces that have no name here, and letters for several scripts.
constexpr CodePoints::Range kWithoutSpaces[] = {
    {0x1950, 0x19DF},  // Tai Le, New Tai Lue
    {0x1A20, 0x1AAF},  // Tai Tham
    {0x1B00, 0x1B7F},  // Balinese
    {0x3005, 0x3007}, {0x3031, 0x3035}, {0x303B, 0x303C}, {0x30FC, 0x30FC}, {0xA000, 0xA4CF},  // Yi
    {0xA980, 0xA9DF},  // Javanese
    {0xAA60, 0xAADF},  // Myanmar's third block, Tai Viet
};

// The character itself if it may close a list marker, else 0.
std::uint32_t closing_of(std::uint32_t c) {
  return c == '.' || c == ')' || c == ']' || c == ':' ? c : 0;
}

class Folds {
 public:
  Folds() : items_(kLimit) {
    std::vector<std::uint8_t> categories(kLimit);
    for (const char category : {'L', 'N', 'P', 'S', 'M', 'Z'}) {
      mark(categories, *CodePoints::named(std::string_view(&category, 1)), category);
    }
    mark(categories, *CodePoints::named("Cc"), 'Z');
    std::vector<std::uint8_t> alone(kLimit);
    for (const char* script : {"Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Khmer",
                               "Myanmar", "Tibetan"}) {
      mark(alone, *CodePoints::named(script), 1);
    }
    for (const auto& [first, last] : kWithoutSpaces) mark(alone, CodePoints(first, last), 1);
    std::string decomposed;
    std::vector<std::uint32_t> parts;
    for (std::uint32_t c = 0; c < kLimit; ++c) {
      if (c >= 0xD800 && c < 0xE000) {
        items_[c] = kNothing;
        continue;
      }
      parts.clear();
      decompose(c, decomposed, parts);
      const char category = static_cast<char>(categories[c]);
      const bool is_letter = parts.size() == 1 && categories[parts[0]] != category &&
                             (categories[parts[0]] == 'L' || categories[parts[0]] == 'N');
      if ((category == 'P' || category == 'S') && !is_letter) {
        const bool divides = kDividing.find(static_cast<char32_t>(c)) != kDividing.npos;
        const std::uint32_t closing = parts.size() == 1 ? closing_of(parts[0]) : 0;
        items_[c] = kPunctuation | (divides ? kSpace : kNothing | closing);
        continue;
      }
      const std::size_t begin = pool_.size();
      for (const std::uint32_t part : parts) add(part, categories, alone);
      if (pool_.size() == begin + 1) {
        items_[c] = pool_[begin];
        pool_.pop_back();
      } else if (pool_.size() == begin) {
        items_[c] = kNothing | (category == 'M' ? kPunctuation : 0);
      } else {
        items_[c] = kNothing | kSeveral | static_cast<std::uint32_t>(begin);
        pool_.push_back(kEnd);
      }
    }
  }

  // Calls each(item) for what a character is.
  template <class Each>
  void of(std::uint32_t c, Each&& each) const {
    const std::uint32_t item = c < kLimit ? items_[c] : kNothing;
    if ((item & (kKind | kSeveral)) != (kNothing | kSeveral)) [[likely]] {
      each(item);
      return;
    }
    for (std::size_t i = item & kCodePoint; pool_[i] != kEnd; ++i) each(pool_[i]);
  }

 private:
  static constexpr std::uint32_t kEnd = 0xFFFFFFFF;

  static void mark(std::vector<std::uint8_t>& values, const CodePoints& set, char value) {
    for (const auto& [first, last] : set.ranges()) {
      for (std::uint32_t c = first; c <= last && c < kLimit; ++c) {
        values[c] = static_cast<std::uint8_t>(value);
      }
    }
  }

  static void decompose(std::uint32_t c, std::string& room, std::vector<std::uint32_t>& parts) {
    std::array<char, 4> text;
    const std::size_t size = encode(c, text);
    normalize(NormalForm::kNfkd, {text.data(), size}, room);
    const auto* p = reinterpret_cast<const std::uint8_t*>(room.data());
    for (const auto* const end = p + room.size(); p < end;) {
      const CodePoint one = decode_utf8(p);
      parts.push_back(one.value);
      p += one.size;
    }
  }

  static std::size_t encode(std::uint32_t c, std::array<char, 4>& out) {
    if (c < 0x80) {
      out[0] = static_cast<char>(c);
      return 1;
    }
    const std::size_t size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (std::size_t i = size; --i > 0; c >>= 6) out[i] = static_cast<char>(0x80 | (c & 0x3F));
    out[0] = static_cast<char>((0xF00 >> size & 0xFF) | c);
    return size;
  }

  void add(std::uint32_t part, const std::vector<std::uint8_t>& categories,
           const std::vector<std::uint8_t>& alone) {
    if (part >= kLimit) return;
    const std::uint64_t* const end = kCaseFolds + kCaseFoldCount;
    const std::uint64_t* const found = std::lower_bound(kCaseFolds, end, std::uint64_t{part} << 42);
    if (found != end && *found >> 42 == part) {
      pool_.push_back(kLetter | (static_cast<std::uint32_t>(*found >> 21) & kCodePoint));
      if (const std::uint32_t second = *found & kCodePoint) pool_.push_back(kLetter | second);
      return;
    }
    if (part == 0x131) part = 'i';  // Turkish has another upper case of i
    switch (categories[part]) {
      case 'L':
      case 'N':
        pool_.push_back((alone[part] ? kCharacter : kLetter) | part);
        break;
      case 'Z':
        pool_.push_back(kSpace);
        break;
      case 'P':
      case 'S':
        pool_.push_back(kNothing | closing_of(part));
        break;
      default:
        break;
    }
  }

  std::vector<std::uint32_t> items_;
  std::vector<std::uint32_t> pool_;
};

const Folds& folds() {
  static const Folds all;
  return all;
}

// The character at p; nullopt if it is not valid UTF-8.
std::optional<CodePoint> checked_character(const std::uint8_t* p, const std::uint8_t* end) {
  if (*p < 0x80) return CodePoint{*p, 1};
  const std::size_t size = *p < 0xC2 ? 0 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : *p < 0xF5 ? 4 : 0;
  if (size == 0 || static_cast<std::size_t>(end - p) < size) return std::nullopt;
  for (std::size_t i = 1; i < size; ++i) {
    if ((p[i] & 0xC0) != 0x80) return std::nullopt;
  }
  const CodePoint one = decode_utf8(p);
  const bool fits = size < 3 || (size == 3 ? one.value >= 0x800 : one.value >= 0x10000);
  if (!fits || one.value >= 0x110000 || (one.value >= 0xD800 && one.value < 0xE000)) {
    return std::nullopt;
  }
  return one;
}

bool is_ascii_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_tag(char c) { return is_ascii_letter(c) || c == '/' || c == '!'; }
bool begins_entity(char c) { return is_ascii_letter(c) || c == '#'; }

// The size of a tag at the beginning of a text; 0 if there is none.
std::size_t tag_at(std::string_view text) {
  if (text.size() < 3 || !begins_tag(text[1])) return 0;
  for (std::size_t i = 2; i < std::min(text.size(), kLongestTag); ++i) {
    if (text[i] == '<') return 0;
    if (text[i] == '>') return i + 1;
  }
  return 0;
}

// The size of a link's address with its brackets, after the text of the link; 0 if there is none.
std::size_t address_at(std::string_view text) {
  if (text.size() < 3 || text[1] != '(') return 0;
  for (std::size_t i = 2; i < std::min(text.size(), kLongestTag); ++i) {
    if (text[i] == ')') return i + 1;
    if (text[i] <= ' ' || text[i] >= 0x7F || text[i] == '(') return 0;
  }
  return 0;
}

// An escaped character and the bytes of its escape; 0 bytes if there is none.
struct Escape {
  std::size_t size = 0;
  std::uint32_t code_point = 0xAD;  // one that is nothing to words
};

std::optional<std::uint32_t> number_of(std::string_view digits, int base) {
  std::uint32_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number, base);
  if (error != std::errc() || stop != end || digits.empty() || digits.size() > 7) return {};
  return number;
}

// An entity of HTML.
Escape entity_at(std::string_view text) {
  const std::size_t end = text.substr(0, 34).find(';');
  if (end == text.npos || end < 2) return {};
  std::string_view name = text.substr(1, end - 1);
  if (name[0] != '#') {
    const bool named = is_ascii_letter(name[0]) &&
                       std::all_of(name.begin(), name.end(),
                                   [](char c) { return is_ascii_letter(c) || is_digit(c); });
    if (!named) return {};
    const bool is_space = name == "nbsp" || name == "ensp" || name == "emsp" || name == "thinsp";
    return {end + 1, is_space ? ' ' : 0xADu};
  }
  const int base = name.size() > 1 && (name[1] | 0x20) == 'x' ? 16 : 10;
  const auto number = number_of(name.substr(base == 16 ? 2 : 1), base);
  return number ? Escape{end + 1, *number} : Escape{};
}

// A character of a string in JSON.
Escape json_escape_at(std::string_view text) {
  if (text.size() > 1 && (text[1] == 'n' || text[1] == 'r' || text[1] == 't')) return {2, ' '};
  if (text.size() < 6 || text[1] != 'u') return {};
  const auto number = number_of(text.substr(2, 4), 16);
  return number ? Escape{6, *number} : Escape{};
}

// The hash of a word is 32 bits of that of its letters as an n-gram.
constexpr std::uint32_t kEmpty = 0;
constexpr auto kBase = static_cast<std::uint32_t>(kNgramBase);

std::uint32_t joined(std::uint32_t letters, std::uint32_t letter) {
  return letters * kBase + letter + 1;
}

constexpr std::size_t kMost = 254;  // letters or characters of a token that has an entry

constexpr auto kPowers = [] {
  std::array<std::uint32_t, kMost + 2> powers{1};
  for (std::size_t i = 1; i <= kMost; ++i) powers[i] = powers[i - 1] * kBase;
  return powers;  // the last one is 0
}();

// Whether a word is a list marker, by its letters and the punctuation after them.
class ListMark {
 public:
  void letter(std::uint32_t c) {
    const bool is_digit = c >= '0' && c <= '9';
    if (state_ == kNew) {
      state_ = is_digit ? kDigit : c < 0x80 ? kLetter : kNone;
    } else {
      state_ = is_digit && (state_ == kDigit || state_ == kDigit + 1) ? state_ + 1 : kNone;
    }
  }
  void punctuation(std::uint32_t c) {
    if (state_ == kNew || state_ == kClosed) return;
    const bool closes = c != 0 && (c != '.' || state_ != kLetter);
    state_ = closes && state_ != kNone ? kClosed : kNone;
  }
  bool is_one() const { return state_ == kClosed; }
  bool is_open() const { return state_ != kNone; }  // it may become one

 private:
  enum State { kNew, kLetter, kDigit, kThreeDigits = kDigit + 2, kClosed, kNone };
  int state_ = kNew;
};

// Whether the letters with this hash may be those of a list marker, whatever is between them.
bool are_of_mark(std::uint32_t letters) {
  static const std::vector<std::uint32_t> all = [] {
    std::vector<std::uint32_t> marks;
    for (std::uint32_t c = 'a'; c <= 'z'; ++c) marks.push_back(joined(kEmpty, c));
    std::size_t begin = marks.size();
    for (std::uint32_t c = '0'; c <= '9'; ++c) marks.push_back(joined(kEmpty, c));
    for (int more = 0; more < 2; ++more) {
      const std::size_t end = marks.size();
      for (; begin < end; ++begin) {
        for (std::uint32_t c = '0'; c <= '9'; ++c) marks.push_back(joined(marks[begin], c));
      }
    }
    std::sort(marks.begin(), marks.end());
    return marks;
  }();
  return std::binary_search(all.begin(), all.end(), letters);
}

// Whether a text may end inside markup, so that what follows decides what it is.
bool is_open(std::string_view text) {
  constexpr std::size_t longest_escape = 6;
  if (text.substr(text.size() - std::min(text.size(), longest_escape)).find('\\') != text.npos) {
    return true;
  }
  const std::size_t least = text.size() - std::min(text.size(), kLongestTag);
  bool is_joined = true, may_be_tag = true;  // no white space, or end of a tag, follows
  for (std::size_t i = text.size(); i-- > least && (is_joined || may_be_tag);) {
    const char c = text[i];
    const bool is_last = i + 1 == text.size();
    if (may_be_tag && c == '<' && (is_last || begins_tag(text[i + 1]))) return true;
    if (is_joined && c == '&' && (is_last || begins_entity(text[i + 1]))) return true;
    if (is_joined && c == ']' && (is_last || text[i + 1] == '(')) return true;
    may_be_tag &= c != '>' && c != '<';
    is_joined &= c > ' ';
  }
  return false;
}

// Calls each(item, begin, end) for the characters and the markup of a text; begin and end are
// bytes.
template <class Each>
void each_item(std::string_view text, Punctuation punctuation, Each&& each) {
  const Folds& all = folds();
  const auto* const data = reinterpret_cast<const std::uint8_t*>(text.data());
  const bool has_markup = punctuation == Punctuation::kAsDescribed;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    std::uint32_t c = data[at];
    if (has_markup && (c == '<' || c == '&' || c == ']' || c == '\\')) {
      const std::string_view rest = text.substr(at);
      if (const std::size_t size = c == '<' ? tag_at(rest) : c == ']' ? address_at(rest) : 0) {
        each(c == '<' ? kSpace : kNothing, at, at + size);
        at += size;
        continue;
      }
      const Escape escape = c == '&'    ? entity_at(rest)
                            : c == '\\' ? json_escape_at(rest)
                                        : Escape{};
      if (escape.size > 0) {
        c = escape.code_point;
        end = at + escape.size;
      }
    } else if (c >= 0x80) {
      const auto one = checked_character(data + at, data + text.size());
      if (!one) {
        each(kSpace, at, end);
        at = end;
        continue;
      }
      c = one->value;
      end = at + one->size;
    }
    all.of(c, [&](std::uint32_t item) {
      if ((item & kPunctuation) != 0 && !has_markup) {
        item = punctuation == Punctuation::kSpaces ? kSpace : kNothing;
      }
      each(item & (kKind | kCodePoint), at, end);
    });
    at = end;
  }
}

}  // namespace

void words_of(std::string_view text, Punctuation punctuation, std::vector<Word>& out) {
  std::uint32_t letters = kEmpty;
  std::size_t first = 0, last = 0;
  ListMark mark;
  const auto finish = [&] {
    if (letters != kEmpty && !mark.is_one()) out.push_back({letters, false, first, last});
    letters = kEmpty;
    mark = {};
  };
  each_item(text, punctuation, [&](std::uint32_t item, std::size_t begin, std::size_t end) {
    const std::uint32_t c = item & kCodePoint;
    switch (item & kKind) {
      case kLetter:
        if (letters == kEmpty) first = begin;
        letters = joined(letters, c);
        last = end;
        mark.letter(c);
        break;
      case kCharacter:
        finish();
        out.push_back({joined(kEmpty, c), true, begin, end});
        break;
      case kNothing:
        mark.punctuation(c);
        break;
      default:
        finish();
    }
  });
  finish();
}

TokenWords::TokenWords(std::span<const std::uint8_t> bytes, std::span<const std::int64_t> ends)
    : bytes_(bytes.begin(), bytes.end()), ends_(ends.begin(), ends.end()) {
  static std::atomic<std::uint64_t> objects{0};
  id_ = ++objects;
  std::int64_t before = 0;
  for (const std::int64_t end : ends) {
    if (end < before || static_cast<std::size_t>(end) > bytes.size()) {
      throw std::invalid_argument("the ends of tokens must ascend in their bytes");
    }
    before = end;
  }
  entries_.resize(std::max<std::size_t>(ends.size(), 1 << 16) + 1);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::string_view token = bytes_of(i);
    if (!token.empty()) entries_[i] = entry_of(token, characters_);
  }
}

template <class T>
std::string_view TokenWords::bytes_of(T token) const {
  if (token >= ends_.size()) return {};
  const auto begin = static_cast<std::size_t>(token == 0 ? 0 : ends_[token - 1]);
  return {reinterpret_cast<const char*>(bytes_.data()) + begin,
          static_cast<std::size_t>(ends_[token]) - begin};
}

// The entry of a token by itself; if it is several characters, their hashes are appended.
TokenWords::Entry TokenWords::entry_of(std::string_view token,
                                       std::vector<std::uint32_t>& characters) {
  const auto* const data = reinterpret_cast<const std::uint8_t*>(token.data());
  const auto is_inside = [](char c) { return (c & 0xC0) == 0x80; };
  Entry entry;
  entry.kind = kComplex;
  entry.flags = kUnusual;
  const char front = token.front(), back = token.back();
  if (token.find_first_of("<&]\\") != token.npos) entry.flags |= kMarkup;
  if (front > ' ') entry.flags |= kHasNoSpace;
  if (front == '(') entry.flags |= kBeginsAddress;
  if (back == ']') entry.flags |= kEndsLink;
  if (back == '<' || back == '&' || back == '\\') entry.flags |= kEndsInMarkup;
  std::size_t whole = 0;
  while (whole < token.size() && is_inside(token[whole])) ++whole;
  const std::size_t lead = whole;
  while (whole < token.size()) {
    const auto one = checked_character(data + whole, data + token.size());
    if (!one) break;
    whole += one->size;
  }
  std::size_t missing = 0;
  if (whole < token.size()) {
    const std::uint8_t begin = data[whole];
    const std::size_t size = begin < 0xC2 ? 0 : begin < 0xE0 ? 2 : begin < 0xF0 ? 3 : 4;
    const std::string_view rest = token.substr(whole + 1);
    if (size < rest.size() + 2 || !std::all_of(rest.begin(), rest.end(), is_inside)) return entry;
    missing = size - rest.size() - 1;
  }
  if (lead > 0 || missing > 0) {
    if (lead < 4) {
      entry.kind = kPartial;
      entry.add = static_cast<std::uint32_t>(lead << 2 | missing);
    }
    return entry;
  }
  for (std::size_t i = 0; i + 1 < token.size(); ++i) {
    const char next = token[i + 1];
    if ((token[i] == '<' && begins_tag(next)) || (token[i] == '&' && begins_entity(next)) ||
        (token[i] == ']' && next == '(') ||
        (token[i] == '\\' && (next == 'n' || next == 'r' || next == 't' || next == 'u'))) {
      return entry;
    }
  }
  std::uint32_t letters = kEmpty;
  std::size_t count = 0, digits = 0;
  std::vector<std::uint32_t> alone;
  bool is_simple = true, is_first = true, ends = false;
  ListMark mark;
  each_item(token, Punctuation::kAsDescribed, [&](std::uint32_t item, std::size_t, std::size_t) {
    const std::uint32_t c = item & kCodePoint;
    switch (item & kKind) {
      case kLetter:
        is_simple &= alone.empty();
        letters = joined(letters, c);
        digits += c >= '0' && c <= '9';
        ++count;
        mark.letter(c);
        break;
      case kCharacter:
        is_simple &= count == 0;
        if (is_first) entry.flags |= kIsBoundary;
        alone.push_back(joined(kEmpty, c));
        break;
      case kNothing:
        if (is_first && c != 0) entry.flags |= kClosesMark;
        mark.punctuation(c);
        break;
      default:
        is_simple &= count == 0 && alone.empty();
        if (is_first) entry.flags |= kIsBoundary;
        ends = true;
    }
    is_first = false;
  });
  // The letters of a list marker may come from several tokens.
  is_simple &= !mark.is_one() && std::max(count, alone.size()) <= kMost;
  is_simple &= alone.empty() || (entry.flags & (kEndsLink | kEndsInMarkup)) == 0;
  if (!is_simple) {
    entry.flags &= static_cast<std::uint16_t>(~kIsBoundary);
    return entry;
  }
  if (!alone.empty()) {
    entry.kind = kCharacters;
    entry.count = static_cast<std::uint8_t>(alone.size());
    entry.add = alone.size() > 1 ? static_cast<std::uint32_t>(characters.size()) : alone[0];
    if (alone.size() > 1) characters.insert(characters.end(), alone.begin(), alone.end());
    return entry;
  }
  entry.flags &= static_cast<std::uint16_t>(~kUnusual);
  if (ends) entry.flags |= kEnds;
  const bool has_mark = digits == count ? count <= 3 : count == 1;
  if (count > 0 && has_mark && mark.is_open()) entry.flags |= kMayBeMark;
  entry.kind = ends ? kBegins : kJoins;
  entry.add = letters;
  entry.count = ends ? kNoLetters : static_cast<std::uint8_t>(count);
  return entry;
}

struct TokenWords::Chain {
  std::array<std::uint32_t, 4> tokens;
  std::uint64_t owner = 0;
  Entry entry;
};

// The entry of the first tokens that are whole characters together; `size` is their number.
template <class T>
const TokenWords::Entry& TokenWords::chained(std::span<const T> tokens, std::size_t& size) const {
  static const Entry unknown = [] {
    Entry entry;
    entry.kind = kComplex;
    entry.flags = kUnusual;
    return entry;
  }();
  thread_local std::vector<Chain> known(1 << 12);
  std::array<std::uint32_t, 4> chain{};
  std::size_t missing = 0, length = 0;
  std::uint64_t hash = 0;
  size = 1;
  do {
    if (length == chain.size() || length == tokens.size()) return unknown;
    const Entry& entry = at(tokens[length]);
    if (entry.kind != kPartial) return unknown;
    const std::size_t lead = entry.add >> 2;
    const bool is_inside = lead == bytes_of(tokens[length]).size();
    if (is_inside ? lead > missing : lead != missing) return unknown;
    missing = is_inside ? missing - lead : entry.add & 3;
    chain[length] = static_cast<std::uint32_t>(tokens[length]) + 1;
    hash = hash * kNgramBase + chain[length++];
  } while (missing > 0);
  size = length;
  Chain& slot = known[mix_hash(hash) >> 52];
  if (slot.owner != id_ || slot.tokens != chain) {
    std::string text;
    for (const T token : tokens.first(length)) text += bytes_of(token);
    std::vector<std::uint32_t> several;
    slot = {chain, id_, entry_of(text, several)};
    if (!several.empty()) slot.entry.kind = kComplex;
  }
  return slot.entry;
}

// The token, `least` at the lowest, in which the word that is open before token i begins.
template <class T>
std::size_t TokenWords::word_at(std::span<const T> tokens, std::size_t least, std::size_t i) const {
  while (i > least && (at(tokens[i - 1]).flags & kEnds) == 0) --i;
  return i > least ? i - 1 : i;
}

template <class T>
void TokenWords::hashes(std::span<const T> tokens, std::vector<std::uint32_t>& out) const {
  std::size_t used = out.size();
  std::size_t least = 0;                       // the token before which no word is open
  std::uint32_t letters = kEmpty, before = 0;  // of the open word; the flags of the last token
  // Keeps room for one word per token that is left, beside the appended ones.
  const auto append = [&](std::span<const std::uint32_t> some, std::size_t left) {
    if (out.size() < used + some.size() + left + 1) out.resize(used + 2 * some.size() + left + 1);
    std::copy(some.begin(), some.end(), out.begin() + static_cast<std::ptrdiff_t>(used));
    used += some.size();
  };
  const auto put = [&] {
    out[used] = letters;
    used += letters != kEmpty;
  };
  append({}, tokens.size());
  for (std::size_t i = 0; i < tokens.size();) {
    const Entry* entry = &at(tokens[i]);
    {  // Nothing here is a branch that would be mispredicted at every third word.
      std::uint32_t* to = out.data() + used;
      for (;;) {
        const std::uint32_t flags = entry->flags;
        if (((flags & kUnusual) | (before << 1 & flags & kSeconds)) != 0) [[unlikely]]
          break;
        *to = letters;
        to += (flags & kEnds) != 0 && letters != kEmpty;
        letters = letters * kPowers[entry->count] + entry->add;
        before = flags;
        if (++i == tokens.size()) break;
        entry = &at(tokens[i]);
      }
      used = static_cast<std::size_t>(to - out.data());
      if (i == tokens.size()) break;
    }
    std::size_t size = 1;
    if (entry->kind == kPartial) entry = &chained(tokens.subspan(i), size);
    const std::uint32_t flags = entry->flags;
    std::uint32_t seconds = before << 1 & flags & kSeconds;
    if (seconds == kClosesMark && !are_of_mark(letters)) seconds = 0;
    if (entry->kind == kComplex || seconds != 0) {
      const std::size_t first = word_at(tokens, least, i);
      append(look_at(tokens, first, i), tokens.size() - i);
    } else if (entry->kind == kCharacters) {
      put();
      i += size;
      if (entry->count == 1) {
        out[used++] = entry->add;
      } else {
        append(std::span(characters_).subspan(entry->add, entry->count), tokens.size() - i);
      }
    } else {
      const bool ends = (flags & kEnds) != 0;
      if (ends) put();
      if (ends && size > 1) least = i;
      letters = letters * kPowers[entry->count] + entry->add;
      before = flags;
      i += size;
      continue;
    }
    least = i;
    letters = kEmpty;
    before = 0;
  }
  put();
  out.resize(used);
}

// The words of the tokens from `first` on, from their text, to beyond `last`, which becomes the
// token at which it stops: one that begins with the end of any word. They are valid until the next
// call.
template <class T>
std::span<const std::uint32_t> TokenWords::look_at(std::span<const T> tokens, std::size_t first,
                                                   std::size_t& last) const {
  thread_local std::string text;
  thread_local std::vector<Word> words;
  thread_local std::vector<std::uint32_t> found;
  text.clear();
  words.clear();
  found.clear();
  std::size_t end = first;
  bool has_markup = false;
  for (; end < tokens.size(); ++end) {
    const Entry& entry = at(tokens[end]);
    if (end > last && (entry.flags & kIsBoundary) != 0 && !(has_markup && is_open(text))) break;
    const std::string_view token = bytes_of(tokens[end]);
    text += token.empty() ? std::string_view("\n") : token;
    has_markup |= (entry.flags & kMarkup) != 0;
  }
  words_of(text, Punctuation::kAsDescribed, words);
  for (const Word& word : words) found.push_back(word.hash);
  last = end;
  return found;
}

template <class T>
void TokenWords::words(std::span<const T> tokens, std::vector<Word>& out) const {
  std::string text;
  std::vector<std::size_t> ends;  // of the text of each token
  for (const T token : tokens) {
    const std::string_view bytes = bytes_of(token);
    text += bytes.empty() ? std::string_view("\n") : bytes;
    ends.push_back(text.size());
  }
  const std::size_t before = out.size();
  words_of(text, Punctuation::kAsDescribed, out);
  const auto token_at = [&](std::size_t byte) {
    const auto found = std::upper_bound(ends.begin(), ends.end(), byte);
    return static_cast<std::size_t>(found - ends.begin());
  };
  for (std::size_t i = before; i < out.size(); ++i) {
    out[i].begin = token_at(out[i].begin);
    out[i].end = token_at(out[i].end - 1) + 1;
  }
}

template <class T>
void TokenWords::find(const Phrases& phrases, std::int64_t document, std::span<const T> tokens,
                      std::vector<Phrases::Hit>& out) const {
  thread_local std::vector<std::uint32_t> found;
  found.clear();
  hashes(tokens, found);
  const std::size_t before = out.size();
  phrases.find<std::uint32_t>(document, found, out);
  if (out.size() > before) {
    std::vector<Word> all;
    words(tokens, all);
    for (std::size_t i = before; i < out.size(); ++i) {
      Phrases::Hit& hit = out[i];
      hit.begin = static_cast<std::int64_t>(all[static_cast<std::size_t>(hit.begin)].begin);
      hit.end = static_cast<std::int64_t>(all[static_cast<std::size_t>(hit.end) - 1].end);
    }
  }
}

#define TOKPACK_OF_TOKENS(T)                                                               \
  template void TokenWords::hashes(std::span<const T>, std::vector<std::uint32_t>&) const; \
  template void TokenWords::words(std::span<const T>, std::vector<Word>&) const;           \
  template void TokenWords::find(const Phrases&, std::int64_t, std::span<const T>,         \
                                 std::vector<Phrases::Hit>&) const;
TOKPACK_OF_TOKENS(std::uint16_t)
TOKPACK_OF_TOKENS(std::uint32_t)
TOKPACK_OF_TOKENS(std::uint64_t)
#undef TOKPACK_OF_TOKENS

}  // namespace tokpack

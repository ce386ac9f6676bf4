#include "core/pretokenize/scan_fallback.hpp"

#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

namespace tokpack::scan_fallback {
namespace {

// A bit beside those of CharClass: the text ends here.
constexpr std::uint32_t kEnd = 256;

struct Char {
  std::uint32_t bits;
  std::uint32_t size;
};

bool is_inside(const Scan& scan, std::size_t pos) { return (scan.text[pos] & 0xC0) == 0x80; }

// The class of the character at pos; kEnd at the end of the text, and where a character is cut off.
Char char_at(const Scan& scan, std::size_t pos) {
  if (pos >= scan.size) return {kEnd, 0};
  const std::uint8_t byte = scan.text[pos];
  const std::size_t size = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  if (pos + size > scan.size) return {kEnd, 0};
  const CodePoint c = decode_utf8(scan.text + pos);
  return {c.value < 0x110000 ? char_class(c.value) : std::uint32_t{0}, c.size};
}

// Whether a run of letters or numbers ends at text[pos], such that the pretokens that follow do not
// depend on what is before.
bool ends_run(const Scan& scan, std::size_t pos) {
  std::size_t last = pos - 1;
  while (last > 0 && is_inside(scan, last)) --last;
  const std::uint32_t before = char_at(scan, last).bits, after = char_at(scan, pos).bits;
  if (before & kLetter) return !(after & (kLetter | kMark)) && scan.text[pos] != '\'';
  return (before & kNumber) && !(after & kNumber);
}

}  // namespace

bool run_ends_line(const Scan& scan, std::size_t pos) {
  while (pos < scan.size && is_inside(scan, pos)) ++pos;
  for (;;) {
    const Char c = char_at(scan, pos);
    if (c.bits & kNewline) return true;
    if (!(c.bits & kSpace)) return false;
    pos += c.size;
  }
}

bool upper_ends_word(const Scan& scan, std::size_t pos) {
  while (pos < scan.size && is_inside(scan, pos)) ++pos;
  for (;;) {
    const Char c = char_at(scan, pos);
    if (!(c.bits & kUpper)) return !(c.bits & (kLetter | kMark));
    pos += c.size;
  }
}

unsigned contraction(const Scan& scan, std::size_t pos) {
  const std::size_t left = scan.size - pos;
  const std::uint8_t* text = scan.text + pos;
  const bool any_case = scan.rules.contractions == ScanRules::Contractions::kAnyCase;
  const int fold = any_case ? 0x20 : 0;
  if (left < 2) return 0;
  const int a = text[1] | fold;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (left < 3) return 0;
  const int b = text[2] | fold;
  if ((a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e')) return 3;
  return any_case && text[1] == 0xC5 && text[2] == 0xBF ? 3 : 0;
}

bool is_uncased(const Scan& scan, std::size_t pos) {
  const std::uint32_t bits = char_at(scan, pos).bits;
  return (bits & (kLetter | kMark)) && !(bits & (kUpper | kLower));
}

void settle(Scan& scan, std::size_t from, std::size_t past) {
  constexpr std::size_t kMany = 1024;
  scan.settled_begin = from;
  scan.settled_starts.clear();
  std::size_t pos = from;
  do {
    scan.settled_starts.push_back(static_cast<std::uint32_t>(pos));
    pos = scan.matcher->match(pos);
    scan.settled_open = pos < scan.size && !(pos > past && ends_run(scan, pos));
  } while (scan.settled_open && scan.settled_starts.size() < kMany);
  if (pos < scan.size) scan.settled_starts.push_back(static_cast<std::uint32_t>(pos));
  scan.settled_end = pos;
  scan.settled = scan.settled_starts.data();
  scan.settled_stop = scan.settled + scan.settled_starts.size();
}

}  // namespace tokpack::scan_fallback

#include "core/text/nfc.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/text/nfc_tables.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

using namespace nfc_tables;

// The lead byte of U+0300. All characters below are boundaries: starters that compose with nothing
// before them.
constexpr std::uint8_t kFirstLead = 0xCC;
constexpr std::size_t kStride = 64;

// Hangul syllables are computed: 19 leading, 21 vowel and 28 trailing jamo (the first is none).
constexpr std::uint32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11A7;
constexpr std::uint32_t kLeadCount = 19, kVowelCount = 21, kTrailCount = 28;
constexpr std::uint32_t kSyllableCount = kLeadCount * kVowelCount * kTrailCount;

std::uint8_t properties(std::uint32_t code_point) {
  const std::uint32_t block = kIndex[code_point >> kBlockBits];
  return kBlocks[(block << kBlockBits) + (code_point & ((1u << kBlockBits) - 1))];
}

std::uint8_t combining_class(std::uint32_t code_point) {
  return kCombiningClasses[properties(code_point) & ((1u << kCheckShift) - 1)];
}

// Reads text while it is in NFC. A boundary is where a starter begins that composes with nothing
// before it; the last one is remembered.
class QuickCheck {
 public:
  explicit QuickCheck(std::string_view text, std::size_t begin)
      : data_(reinterpret_cast<const std::uint8_t*>(text.data())),
        size_(text.size()),
        pos_(begin),
        boundary_(begin) {}

  // The last boundary before a character that breaks NFC, or may; the size when there is none.
  std::size_t run() {
    std::uint8_t last_rank = 0;
    while (pos_ < size_) {
      if (skip_low()) last_rank = 0;
      if (pos_ >= size_) break;
      const CodePoint c = decode_utf8(data_ + pos_);
      // Where the quick check says yes, the properties are the rank of the combining class alone.
      const std::uint8_t rank = properties(c.value);
      if (rank == 0) {
        boundary_ = pos_;
      } else if (rank >> kCheckShift || rank < last_rank) {
        return boundary_;
      }
      last_rank = rank;
      pos_ += c.size;
    }
    return size_;
  }

 private:
  // Skips characters below U+0300; true if there was one.
  bool skip_low() {
    const std::size_t begin = pos_;
    while (pos_ + kStride <= size_ && is_low(data_ + pos_)) pos_ += kStride;
    while (pos_ < size_ && data_[pos_] < kFirstLead) ++pos_;
    if (pos_ == begin) return false;
    boundary_ = pos_ - 1;
    while ((data_[boundary_] & 0xC0) == 0x80) --boundary_;
    return true;
  }

  static bool is_low(const std::uint8_t* p) {
    std::uint8_t most = 0;
    for (std::size_t i = 0; i < kStride; ++i) most = std::max(most, p[i]);
    return most < kFirstLead;
  }

  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t pos_;
  std::size_t boundary_;
};

struct Mark {
  std::uint32_t code_point;
  std::uint8_t combining_class;
};

void decompose(std::uint32_t c, std::vector<Mark>& out) {
  if (c - kSyllables < kSyllableCount) {
    const std::uint32_t i = c - kSyllables;
    out.push_back({kLeads + i / (kVowelCount * kTrailCount), 0});
    out.push_back({kVowels + i / kTrailCount % kVowelCount, 0});
    if (i % kTrailCount) out.push_back({kTrails + i % kTrailCount, 0});
    return;
  }
  const std::uint32_t* end = kDecomposable + kDecompositionCount;
  const std::uint32_t* found = std::lower_bound(kDecomposable, end, c);
  if (found == end || *found != c) {
    out.push_back({c, combining_class(c)});
    return;
  }
  const std::uint16_t* range = kDecompositionBegins + (found - kDecomposable);
  for (std::size_t i = range[0]; i < range[1]; ++i) {
    out.push_back({kDecompositions[i], combining_class(kDecompositions[i])});
  }
}

// Sorts each run of non-starters by combining class, keeping the order of equals.
void reorder(std::vector<Mark>& marks) {
  const auto is_starter = [](const Mark& m) { return m.combining_class == 0; };
  for (auto begin = marks.begin(); begin != marks.end();) {
    const auto end = std::find_if(begin, marks.end(), is_starter);
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) {
      return a.combining_class < b.combining_class;
    });
    begin = std::find_if_not(end, marks.end(), is_starter);
  }
}

// The primary composite of a pair; 0 if there is none.
std::uint32_t composite(std::uint32_t first, std::uint32_t second) {
  if (first - kLeads < kLeadCount && second - kVowels < kVowelCount) {
    return kSyllables + ((first - kLeads) * kVowelCount + second - kVowels) * kTrailCount;
  }
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTrailCount == 0 &&
      second - kTrails - 1 < kTrailCount - 1) {
    return first + second - kTrails;
  }
  const std::uint64_t key = std::uint64_t{first} << 32 | second;
  const std::uint64_t* end = kComposable + kCompositionCount;
  const std::uint64_t* found = std::lower_bound(kComposable, end, key);
  return found != end && *found == key ? kCompositions[found - kComposable] : 0;
}

// Composes in place: a character joins the last starter, unless one between them is a starter or
// has a combining class that is not lower than its own.
void compose(std::vector<Mark>& marks) {
  std::size_t kept = 0;
  std::size_t starter = marks.size();  // none yet
  for (const Mark mark : marks) {
    const bool blocked =
        starter == marks.size() ||
        (starter + 1 != kept && marks[kept - 1].combining_class >= mark.combining_class);
    const std::uint32_t joined =
        blocked ? 0 : composite(marks[starter].code_point, mark.code_point);
    if (joined) {
      marks[starter].code_point = joined;
      continue;
    }
    if (mark.combining_class == 0) starter = kept;
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

void append_utf8(std::uint32_t c, std::string& out) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

// Decomposes from `begin`, a boundary, to the next boundary; returns that one.
std::size_t decompose_segment(std::string_view text, std::size_t begin, std::vector<Mark>& marks) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  std::size_t pos = begin;
  marks.clear();
  while (pos < text.size()) {
    const CodePoint c = decode_utf8(data + pos);
    if (pos != begin && properties(c.value) == 0) break;
    decompose(c.value, marks);
    pos += c.size;
  }
  return pos;
}

}  // namespace

bool is_nfc_quick(std::string_view text) { return QuickCheck(text, 0).run() == text.size(); }

void nfc(std::string_view text, std::string& out) {
  out.clear();
  std::vector<Mark> marks;
  std::size_t pos = 0;
  for (;;) {
    const std::size_t good = QuickCheck(text, pos).run();
    out.append(text, pos, good - pos);
    if (good == text.size()) return;
    pos = decompose_segment(text, good, marks);
    reorder(marks);
    compose(marks);
    for (const Mark mark : marks) append_utf8(mark.code_point, out);
  }
}

}  // namespace tokpack

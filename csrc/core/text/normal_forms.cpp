#include "core/text/normal_forms.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/text/normal_form_tables.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

using namespace normal_form_tables;

// All characters below these lead bytes, of U+0300 and of U+00A0, are boundaries: starters that
// compose with nothing before them, and do not decompose.
constexpr std::uint8_t kFirstLead = 0xCC, kFirstLeadOfOthers = 0xC2;
constexpr std::size_t kStride = 64;

// Hangul syllables are computed: 19 leading, 21 vowel and 28 trailing jamo (the first is none).
constexpr std::uint32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11A7;
constexpr std::uint32_t kLeadCount = 19, kVowelCount = 21, kTrailCount = 28;
constexpr std::uint32_t kSyllableCount = kLeadCount * kVowelCount * kTrailCount;

constexpr std::uint8_t kRankBits = (1u << kCheckShift) - 1;

std::uint8_t look_up(const std::uint8_t* index, const std::uint8_t* blocks, std::uint32_t c) {
  const std::uint32_t block = index[c >> kBlockBits];
  return blocks[(block << kBlockBits) + (c & ((1u << kBlockBits) - 1))];
}

// The entry in kBlocks, with the quick check of this form.
template <NormalForm kForm>
std::uint8_t properties(std::uint32_t code_point) {
  const std::uint8_t bits = look_up(kIndex, kBlocks, code_point);
  if constexpr (kForm == NormalForm::kNfc) return bits;
  const unsigned other = look_up(kOtherIndex, kOtherBlocks, code_point);
  const unsigned check = kForm == NormalForm::kNfkc  ? other & 3
                         : kForm == NormalForm::kNfd ? (other & 4) >> 1
                         : (other & 12) != 0         ? 2
                                                     : 0;
  return static_cast<std::uint8_t>((bits & kRankBits) | check << kCheckShift);
}

// Reads text while it is in a normal form. A boundary is where a starter begins that composes with
// nothing before it; the last one is remembered.
template <NormalForm kForm>
class QuickCheck {
 public:
  explicit QuickCheck(std::string_view text, std::size_t begin)
      : data_(reinterpret_cast<const std::uint8_t*>(text.data())),
        size_(text.size()),
        pos_(begin),
        boundary_(begin) {}

  // The last boundary before a character that breaks the form, or may; the size when there is none.
  std::size_t run() {
    std::uint8_t last_rank = 0;
    while (pos_ < size_) {
      if (skip_low()) last_rank = 0;
      if (pos_ >= size_) break;
      const CodePoint c = decode_utf8(data_ + pos_);
      // Where the quick check says yes, the properties are the rank of the combining class alone.
      const std::uint8_t rank = properties<kForm>(c.value);
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
  // Skips characters below the first that may matter; true if there was one.
  bool skip_low() {
    const std::size_t begin = pos_;
    while (pos_ + kStride <= size_ && is_low(data_ + pos_)) pos_ += kStride;
    while (pos_ < size_ && data_[pos_] < kFirst) ++pos_;
    if (pos_ == begin) return false;
    boundary_ = pos_ - 1;
    while ((data_[boundary_] & 0xC0) == 0x80) --boundary_;
    return true;
  }

  static bool is_low(const std::uint8_t* p) {
    std::uint8_t most = 0;
    for (std::size_t i = 0; i < kStride; ++i) most = std::max(most, p[i]);
    return most < kFirst;
  }

  static constexpr std::uint8_t kFirst =
      kForm == NormalForm::kNfc ? kFirstLead : kFirstLeadOfOthers;

  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t pos_;
  std::size_t boundary_;
};

struct Mark {
  std::uint32_t code_point;
  std::uint8_t combining_class;
  std::ptrdiff_t change = 0;  // as Trail takes it
};

bool append_of(const Decompositions& known, std::uint32_t c, std::vector<Mark>& out) {
  const std::uint32_t* found = std::lower_bound(known.from, known.from + known.count, c);
  if (found == known.from + known.count || *found != c) return false;
  const std::uint16_t* range = known.begins + (found - known.from);
  for (std::size_t i = range[0]; i < range[1]; ++i) {
    out.push_back({known.text[i], combining_class(known.text[i])});
  }
  return true;
}

void decompose(std::uint32_t c, bool compatible, std::vector<Mark>& out) {
  const std::size_t first = out.size();
  if (c - kSyllables < kSyllableCount) {
    const std::uint32_t i = c - kSyllables;
    out.push_back({kLeads + i / (kVowelCount * kTrailCount), 0});
    out.push_back({kVowels + i / kTrailCount % kVowelCount, 0});
    if (i % kTrailCount) out.push_back({kTrails + i % kTrailCount, 0});
  } else if (!(compatible && append_of(kCompatible, c, out)) && !append_of(kCanonical, c, out)) {
    out.push_back({c, combining_class(c)});
  }
  for (std::size_t i = first + 1; i < out.size(); ++i) out[i].change = 1;
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
      marks[starter].change += mark.change - 1;
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
template <NormalForm kForm>
std::size_t decompose_segment(std::string_view text, std::size_t begin, std::vector<Mark>& marks) {
  constexpr bool kCompatibly = kForm == NormalForm::kNfkc || kForm == NormalForm::kNfkd;
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  std::size_t pos = begin;
  marks.clear();
  while (pos < text.size()) {
    const CodePoint c = decode_utf8(data + pos);
    if (pos != begin && properties<kForm>(c.value) == 0) break;
    decompose(c.value, kCompatibly, marks);
    pos += c.size;
  }
  return pos;
}

template <NormalForm kForm>
void normalize(std::string_view text, std::string& out, Trail* trail) {
  constexpr bool kComposes = kForm == NormalForm::kNfc || kForm == NormalForm::kNfkc;
  out.clear();
  std::vector<Mark> marks;
  std::size_t pos = 0;
  for (;;) {
    const std::size_t good = QuickCheck<kForm>(text, pos).run();
    out.append(text, pos, good - pos);
    for (std::size_t at = pos; trail != nullptr && at < good;) {
      const std::size_t size = character_size(static_cast<std::uint8_t>(text[at]));
      trail->change(size, 0);
      at += size;
    }
    if (good == text.size()) return;
    pos = decompose_segment<kForm>(text, good, marks);
    reorder(marks);
    if (kComposes) compose(marks);
    for (const Mark mark : marks) {
      const std::size_t before = out.size();
      append_utf8(mark.code_point, out);
      if (trail != nullptr) trail->change(out.size() - before, mark.change);
    }
  }
}

}  // namespace

std::optional<NormalForm> normal_form_by_name(std::string_view name) {
  if (name == "NFC") return NormalForm::kNfc;
  if (name == "NFD") return NormalForm::kNfd;
  if (name == "NFKC") return NormalForm::kNfkc;
  if (name == "NFKD") return NormalForm::kNfkd;
  return std::nullopt;
}

bool is_normal_quick(NormalForm form, std::string_view text) {
  switch (form) {
    case NormalForm::kNfc:
      return QuickCheck<NormalForm::kNfc>(text, 0).run() == text.size();
    case NormalForm::kNfd:
      return QuickCheck<NormalForm::kNfd>(text, 0).run() == text.size();
    case NormalForm::kNfkc:
      return QuickCheck<NormalForm::kNfkc>(text, 0).run() == text.size();
    case NormalForm::kNfkd:
      return QuickCheck<NormalForm::kNfkd>(text, 0).run() == text.size();
  }
  return false;
}

void normalize(NormalForm form, std::string_view text, std::string& out, Trail* trail) {
  switch (form) {
    case NormalForm::kNfc:
      return normalize<NormalForm::kNfc>(text, out, trail);
    case NormalForm::kNfd:
      return normalize<NormalForm::kNfd>(text, out, trail);
    case NormalForm::kNfkc:
      return normalize<NormalForm::kNfkc>(text, out, trail);
    case NormalForm::kNfkd:
      return normalize<NormalForm::kNfkd>(text, out, trail);
  }
}

std::uint8_t combining_class(std::uint32_t code_point) {
  return kCombiningClasses[look_up(kIndex, kBlocks, code_point) & kRankBits];
}

}  // namespace tokpack

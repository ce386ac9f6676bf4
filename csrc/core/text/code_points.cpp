#include "core/text/code_points.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>

namespace tokpack {
namespace {

using namespace code_point_tables;

// In the order of the numbers in kCategoryRuns; and the long names, one letter for a group of them.
constexpr std::string_view kCategories[] = {
    "cc", "cf", "cn", "co", "cs", "ll", "lm", "lo", "lt", "lu", "mc", "me", "mn", "nd", "nl",
    "no", "pc", "pd", "pe", "pf", "pi", "po", "ps", "sc", "sk", "sm", "so", "zl", "zp", "zs"};

struct LongName {
  std::string_view name, categories;
};
constexpr LongName kLongNames[] = {
    {"other", "c"},
    {"control", "cc"},
    {"format", "cf"},
    {"unassigned", "cn"},
    {"privateuse", "co"},
    {"surrogate", "cs"},
    {"letter", "l"},
    {"lowercaseletter", "ll"},
    {"modifierletter", "lm"},
    {"otherletter", "lo"},
    {"titlecaseletter", "lt"},
    {"uppercaseletter", "lu"},
    {"mark", "m"},
    {"combiningmark", "m"},
    {"spacingmark", "mc"},
    {"enclosingmark", "me"},
    {"nonspacingmark", "mn"},
    {"number", "n"},
    {"decimalnumber", "nd"},
    {"letternumber", "nl"},
    {"othernumber", "no"},
    {"punctuation", "p"},
    {"connectorpunctuation", "pc"},
    {"dashpunctuation", "pd"},
    {"closepunctuation", "pe"},
    {"finalpunctuation", "pf"},
    {"initialpunctuation", "pi"},
    {"otherpunctuation", "po"},
    {"openpunctuation", "ps"},
    {"symbol", "s"},
    {"currencysymbol", "sc"},
    {"modifiersymbol", "sk"},
    {"mathsymbol", "sm"},
    {"othersymbol", "so"},
    {"separator", "z"},
    {"lineseparator", "zl"},
    {"paragraphseparator", "zp"},
    {"spaceseparator", "zs"},
};

// The code points of the runs with a wanted value.
template <class Wanted>
CodePoints of_runs(std::span<const std::uint32_t> runs, Wanted&& is_wanted) {
  std::vector<CodePoints::Range> ranges;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!is_wanted(runs[i] & 0xFF)) continue;
    const std::uint32_t first = runs[i] >> 8;
    const std::uint32_t next = i + 1 < runs.size() ? runs[i + 1] >> 8 : CodePoints::kLimit;
    if (!ranges.empty() && ranges.back().last + 1 == first) {
      ranges.back().last = next - 1;
    } else {
      ranges.push_back({first, next - 1});
    }
  }
  return CodePoints(std::move(ranges));
}

// The code points whose category begins with this; nullopt if there are none.
CodePoints of_category(std::string_view begin) {
  return of_runs({kCategoryRuns, kCategoryRunCount},
                 [&](std::uint32_t category) { return kCategories[category].starts_with(begin); });
}

std::optional<CodePoints> of_table(std::string_view name) {
  for (std::size_t i = 0; i < kNamedSetCount; ++i) {
    if (kNamedSets[i].name != name) continue;
    std::vector<CodePoints::Range> ranges;
    for (std::size_t at = kNamedSets[i].begin; at < kNamedSets[i].end; at += 2) {
      ranges.push_back({kBorders[at], kBorders[at + 1] - 1});
    }
    return CodePoints(std::move(ranges));
  }
  return std::nullopt;
}

}  // namespace

CodePoints operator|(const CodePoints& a, const CodePoints& b) {
  std::vector<CodePoints::Range> all = a.ranges_, joined;
  all.insert(all.end(), b.ranges_.begin(), b.ranges_.end());
  std::ranges::sort(all, {}, &CodePoints::Range::first);
  for (const CodePoints::Range& range : all) {
    if (!joined.empty() && joined.back().last + 1 >= range.first) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return CodePoints(std::move(joined));
}

CodePoints operator~(const CodePoints& a) {
  std::vector<CodePoints::Range> others;
  std::uint32_t from = 0;
  for (const CodePoints::Range& range : a.ranges_) {
    if (range.first > from) others.push_back({from, range.first - 1});
    from = range.last + 1;
  }
  if (from < CodePoints::kLimit) others.push_back({from, CodePoints::kLimit - 1});
  return CodePoints(std::move(others));
}

CodePoints operator&(const CodePoints& a, const CodePoints& b) { return ~(~a | ~b); }

std::optional<CodePoints> CodePoints::named(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    plain += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 0x20 : c);
  }
  for (const LongName& known : kLongNames) {
    if (known.name == plain) plain = known.categories;
  }
  if (plain.size() == 1 || plain.size() == 2) {
    CodePoints found = of_category(plain);
    if (!found.empty()) return found;
  }
  if (plain == "numeric" || plain == "punctuation") return std::nullopt;
  return of_table(plain);
}

CodePoints CodePoints::white_space() {
  return CodePoints({{0x09, 0x0D},
                     {0x20, 0x20},
                     {0x85, 0x85},
                     {0xA0, 0xA0},
                     {0x1680, 0x1680},
                     {0x2000, 0x200A},
                     {0x2028, 0x2029},
                     {0x202F, 0x202F},
                     {0x205F, 0x205F},
                     {0x3000, 0x3000}});
}

CodePoints CodePoints::decimal_digits() { return of_category("nd"); }
CodePoints CodePoints::words() { return of_table("word").value(); }
CodePoints CodePoints::rust_words() {
  const CodePoints others({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}});
  return (words() & ~others) | CodePoints(0x200C, 0x200D);
}
CodePoints CodePoints::numeric() { return of_table("numeric").value(); }
CodePoints CodePoints::punctuation() { return of_table("punctuation").value(); }
std::vector<CodePoints> CodePoints::scripts() {
  std::vector<CodePoints> sets;
  for (std::uint32_t script = 0;; ++script) {
    sets.push_back(of_runs({kScriptRuns, kScriptRunCount},
                           [&](std::uint32_t value) { return value == script; }));
    if (sets.back().empty()) break;
  }
  sets.pop_back();
  return sets;
}
CodePoints CodePoints::bert_removed() { return of_table("bert_removed").value(); }
CodePoints CodePoints::bert_marks() { return of_table("bert_marks").value(); }

bool CodePoints::contains(std::uint32_t code_point) const {
  const auto next = std::ranges::upper_bound(ranges_, code_point, {}, &Range::first);
  return next != ranges_.begin() && code_point <= std::prev(next)->last;
}

}  // namespace tokpack

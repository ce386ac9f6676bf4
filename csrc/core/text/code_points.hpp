// Sets of code points, and those that regular expressions name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tokpack {

class CodePoints {
 public:
  static constexpr std::uint32_t kLimit = 0x110000;

  struct Range {
    std::uint32_t first, last;
    friend bool operator==(const Range&, const Range&) = default;
  };

  CodePoints() = default;
  CodePoints(std::uint32_t first, std::uint32_t last) : ranges_{{first, last}} {}
  // REQUIRES: ascending, apart from each other.
  explicit CodePoints(std::vector<Range> ranges) : ranges_(std::move(ranges)) {}

  // The set that \p{name} means in Oniguruma: a general category, or one of the scripts in our
  // tables. Spaces, hyphens, underscores and case of the name are ignored. nullopt for an unknown
  // name.
  static std::optional<CodePoints> named(std::string_view name);

  static CodePoints all() { return {0, kLimit - 1}; }
  static CodePoints white_space();     // \s
  static CodePoints decimal_digits();  // \d
  static CodePoints words();           // \w
  // \w of the library's other engine, which it uses for added tokens and for Whitespace.
  static CodePoints rust_words();
  // The characters that are digits and punctuation to the Hugging Face library's pretokenizers
  // Digits and Punctuation.
  static CodePoints numeric();
  static CodePoints punctuation();
  // The scripts of its UnicodeScripts: first the characters of any script, then each script.
  static std::vector<CodePoints> scripts();
  // The characters that its BertNormalizer removes: controls and the like, and marks without width,
  // by an older version of Unicode.
  static CodePoints bert_removed();
  static CodePoints bert_marks();

  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool contains(std::uint32_t code_point) const;

  friend CodePoints operator|(const CodePoints& a, const CodePoints& b);
  friend CodePoints operator&(const CodePoints& a, const CodePoints& b);
  friend CodePoints operator~(const CodePoints& a);
  friend bool operator==(const CodePoints&, const CodePoints&) = default;

 private:
  std::vector<Range> ranges_;
};

namespace code_point_tables {

struct NamedSet {
  const char* name;
  std::size_t begin, end;  // in kBorders: where the set begins and ends, in turns
};

extern const std::uint32_t kCategoryRuns[];  // the first code point, shifted by 8, and a category
extern const std::size_t kCategoryRunCount;
extern const std::uint32_t kScriptRuns[];  // as kCategoryRuns: the number of a script, 0 for any
extern const std::size_t kScriptRunCount;
extern const std::uint32_t kBorders[];
extern const NamedSet kNamedSets[];
extern const std::size_t kNamedSetCount;

}  // namespace code_point_tables

}  // namespace tokpack

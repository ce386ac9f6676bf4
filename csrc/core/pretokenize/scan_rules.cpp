#include "core/pretokenize/scan_rules.hpp"

#include <string>
#include <string_view>

#include "core/pretokenize/scan.hpp"

namespace tokpack {
namespace {

using Contractions = ScanRules::Contractions;
using Family = ScanShape::Family;
using Tail = ScanRules::Tail;

constexpr ScanShape kShapes[] = {
    {.family = Family::kGpt2},
    {.family = Family::kGpt2, .cut_first = true},
    {.family = Family::kCl100k},
    {.family = Family::kCl100k, .marks = true},
    {.family = Family::kCl100k, .marks = true, .cased = true},
    {.family = Family::kDeepseek, .marks = true, .cut_first = true},
};

constexpr std::string_view kAsWritten = R"('s|'t|'re|'ve|'m|'ll|'d)";
constexpr std::string_view kAnyCase = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
constexpr std::string_view kSpaces = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLead = R"([^\r\n\p{L}\p{N}]?)";
constexpr std::string_view kUpper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
constexpr std::string_view kLower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
constexpr std::string_view kCjk = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr std::string_view kDeepseek =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
    R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)";

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string all;
  for (const std::string_view part : parts) all += part;
  return all;
}

std::string digits_text(unsigned digits) {
  if (digits == 0) return R"(\p{N}+)";
  return digits == 1 ? R"(\p{N})" : R"(\p{N}{1,)" + std::to_string(digits) + "}";
}

std::string gpt2_text(Contractions contractions) {
  const std::string_view first = contractions == Contractions::kAsWritten ? kAsWritten
                                 : contractions == Contractions::kAnyCase ? kAnyCase
                                                                          : "";
  return joined(
      {first, first.empty() ? "" : "|", R"( ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"});
}

std::string cl100k_text(const ScanRules& rules) {
  const std::string contraction =
      rules.contractions == Contractions::kAnyCase     ? std::string(kAnyCase)
      : rules.contractions == Contractions::kAsWritten ? joined({"(?:", kAsWritten, ")"})
                                                       : "";
  const std::string_view tail = rules.tail == Tail::kLines             ? R"([\r\n]*)"
                                : rules.tail == Tail::kLinesAndSlashes ? R"([\r\n/]*)"
                                                                       : "";
  const bool marks = rules.shape.marks, cased = rules.shape.cased;
  std::string words;
  if (cased) {
    const std::string end = contraction.empty() ? "" : contraction + "?";
    words =
        joined({kLead, kUpper, "*", kLower, "+", end, "|", kLead, kUpper, "+", kLower, "*", end});
  } else {
    words = joined({contraction, contraction.empty() ? "" : "|", kLead,
                    marks ? R"([\p{L}\p{M}]+)" : R"(\p{L}+)"});
  }
  const std::string_view symbols =
      marks && !cased ? R"(| ?[^\s\p{L}\p{M}\p{N}]+)" : R"(| ?[^\s\p{L}\p{N}]+)";
  return joined({words, "|", digits_text(rules.digits), symbols, tail, kSpaces});
}

// Where these differ, two of the rules do.
constexpr std::string_view kProbe =
    "Don't DON'T it's IT'S 1 12 123 1234 12345 a1 1a  2 \n!\n\n?//\n/x !/\n .. a\u0301b \u0301c "
    "!\u0301\u0301 aBc ABc ABC's\u0301 x's y'S \u4e2d\u6587a \u4e2d \u30ab\u30ca1 .ab\u00e9 "
    "\x01\x01z -x  \u00a0\u00a0y 'll'LL\t\tq\r\n \n  w \u24b6'd 7\u0662 \u01c5x'Ve  ";

std::vector<ScanRules> all_rules() {
  std::vector<ScanRules> all;
  for (const ScanShape& shape : kShapes) {
    for (const auto contractions :
         {Contractions::kNone, Contractions::kAsWritten, Contractions::kAnyCase}) {
      for (unsigned digits = 0; digits <= 3; ++digits) {
        for (const Tail tail : {Tail::kNone, Tail::kLines, Tail::kLinesAndSlashes}) {
          const bool possible =
              shape.family == Family::kGpt2 ? digits == shape.cut_first && tail == Tail::kNone
              : shape.family == Family::kDeepseek
                  ? contractions == Contractions::kNone && digits > 0 && tail == Tail::kLines
                  : true;
          if (possible) all.push_back({shape, contractions, digits, tail});
        }
      }
    }
  }
  return all;
}

}  // namespace

std::vector<StepText> texts_of(const ScanRules& rules) {
  const StepText bytes{"ByteLevel", "", false};
  switch (rules.shape.family) {
    case Family::kCl100k:
      return {{"Isolated", cl100k_text(rules), false}, bytes};
    case Family::kDeepseek:
      return {{"Isolated", digits_text(rules.digits), false},
              {"Isolated", std::string(kCjk), false},
              {"Isolated", joined({kDeepseek, kSpaces}), false},
              bytes};
    case Family::kGpt2:
      break;
  }
  std::vector<StepText> texts;
  if (rules.shape.cut_first) texts.push_back({"Digits", "", true});
  if (rules.contractions == Contractions::kAsWritten) {
    texts.push_back({"ByteLevel", "", true});
  } else {
    texts.push_back({"Isolated", gpt2_text(rules.contractions), false});
    texts.push_back(bytes);
  }
  return texts;
}

std::optional<ScanRules> rules_of(std::span<const Step> steps) {
  if (steps.empty()) return std::nullopt;
  const std::span text(reinterpret_cast<const std::uint8_t*>(kProbe.data()), kProbe.size());
  const std::vector<std::int64_t> expected = ends_of(Cutter(steps, std::nullopt), text);
  const bool one = steps.size() == 1 && steps[0].automaton.always_matches();
  for (const ScanRules& rules : all_rules()) {
    if (rules.shape.cased && !one) continue;  // its scanner asks for matches
    if (ends_of(Cutter(steps, rules), text) != expected) continue;
    if (same_steps(steps, compile_steps(texts_of(rules)).steps)) return rules;
  }
  return std::nullopt;
}

}  // namespace tokpack

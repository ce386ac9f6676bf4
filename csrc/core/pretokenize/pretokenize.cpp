#include "core/pretokenize/pretokenize.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "core/pretokenize/scan.hpp"

namespace tokpack {
namespace {

using Contractions = ScanRules::Contractions;
using Family = ScanShape::Family;
using Tail = ScanRules::Tail;

constexpr ScanShape kGpt2{.family = Family::kGpt2};
constexpr ScanShape kDigitsGpt2{.family = Family::kGpt2, .cut_first = true};
constexpr ScanShape kCl100k{.family = Family::kCl100k};
constexpr ScanShape kMarks{.family = Family::kCl100k, .marks = true};
constexpr ScanShape kCased{.family = Family::kCl100k, .marks = true, .cased = true};
constexpr ScanShape kDeepseek{.family = Family::kDeepseek, .marks = true, .cut_first = true};

struct Named {
  std::string_view name;
  ScanRules rules;
};

constexpr std::string_view kNone = "none";

// These names are in the fingerprints of tokenizers: one that is here stays.
constexpr Named kNames[] = {
    {"gpt2", {kGpt2, Contractions::kAsWritten, 0, Tail::kNone}},
    // StarCoder, SmolLM
    {"digits_gpt2", {kDigitsGpt2, Contractions::kAsWritten, 1, Tail::kNone}},
    // Llama 3, GLM 4, OLMo 2, cl100k
    {"llama3", {kCl100k, Contractions::kAnyCase, 3, Tail::kLines}},
    // Qwen 2, 2.5, 3
    {"qwen2", {kCl100k, Contractions::kAnyCase, 1, Tail::kLines}},
    // Qwen 3.5
    {"qwen35", {kMarks, Contractions::kAnyCase, 1, Tail::kLines}},
    // gpt-oss, Llama 4, MiniMax M2
    {"o200k", {kCased, Contractions::kAnyCase, 3, Tail::kLinesAndSlashes}},
    // Mistral's Tekken
    {"tekken", {kCased, Contractions::kNone, 1, Tail::kLinesAndSlashes}},
    // DeepSeek V3, R1
    {"deepseek_v3", {kDeepseek, Contractions::kNone, 3, Tail::kLines}},
};

const Named* find_named(std::string_view name) {
  const auto* const found = std::ranges::find(kNames, name, &Named::name);
  return found == std::end(kNames) ? nullptr : found;
}

}  // namespace

Pretokenizer::Pretokenizer(std::span<const StepText> texts)
    : steps(compile_steps(texts)), rules(rules_of(steps)), prefixes(adds_prefix(texts)) {}

Pretokenizer::Pretokenizer(std::string_view pattern_name) {
  const auto texts = texts_of_pattern(pattern_name);
  if (!texts) throw std::invalid_argument("pattern '" + std::string(pattern_name) + "' is unknown");
  steps = compile_steps(*texts);
  if (const Named* const named = find_named(pattern_name)) rules = named->rules;
}

std::vector<std::int64_t> pretoken_ends(const Pretokenizer& pretokenizer,
                                        std::optional<Level> level,
                                        std::span<const std::uint8_t> text) {
  if (text.empty()) return {};
  if (pretokenizer.steps.empty()) return {static_cast<std::int64_t>(text.size())};
  if (!level) return ends_of(Cutter(pretokenizer.steps, std::nullopt), text);
  return ends_of(Cutter(pretokenizer.steps, pretokenizer.rules, *level), text);
}

std::vector<std::string_view> pattern_names() {
  std::vector<std::string_view> names{kNone};
  for (const Named& one : kNames) names.push_back(one.name);
  return names;
}

std::optional<std::vector<StepText>> texts_of_pattern(std::string_view name) {
  if (name == kNone) return std::vector<StepText>{{"ByteLevel", "", false}};
  const Named* const named = find_named(name);
  return named != nullptr ? std::optional(texts_of(named->rules)) : std::nullopt;
}

std::optional<std::string_view> name_of(const Pretokenizer& pretokenizer) {
  if (pretokenizer.prefixes) return std::nullopt;
  if (pretokenizer.steps.empty()) return kNone;
  for (const Named& one : kNames) {
    if (one.rules == pretokenizer.rules) return one.name;
  }
  return std::nullopt;
}

}  // namespace tokpack

// Pretokenization: cutting a document into the words that a model encodes independently.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/cpu.hpp"
#include "core/pretokenize/scan_rules.hpp"
#include "core/pretokenize/steps.hpp"

namespace tokpack {

// How a tokenizer cuts text, understood.
struct Pretokenizer {
  // Throws std::invalid_argument with a phrase that says what is not understood.
  explicit Pretokenizer(std::span<const StepText> texts);
  // One of pattern_names(). Throws std::invalid_argument for another name.
  explicit Pretokenizer(std::string_view pattern_name);

  std::vector<Step> steps;         // none: a text is one word
  std::optional<ScanRules> rules;  // by which scanners cut as the steps do
  bool prefixes = false;           // a text that does not begin with a space gets one in front
};

// The end of each pretoken of one text, in bytes, as the scanner of a level finds it; without a
// level step by step. REQUIRES: fewer than 2^31 bytes, UTF-8.
std::vector<std::int64_t> pretoken_ends(const Pretokenizer& pretokenizer,
                                        std::optional<Level> level,
                                        std::span<const std::uint8_t> text);

// The names of the patterns that users know, such as "llama3", their pre-tokenizers, and the name
// of a pretokenizer that cuts as one of these.
std::vector<std::string_view> pattern_names();
std::optional<std::vector<StepText>> texts_of_pattern(std::string_view name);
std::optional<std::string_view> name_of(const Pretokenizer& pretokenizer);

}  // namespace tokpack

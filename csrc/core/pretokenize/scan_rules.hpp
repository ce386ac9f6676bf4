// Descriptions of the patterns that scanners know, from which scan_*.inc.hpp makes the scanners of
// all instruction sets. The expressions that a description stands for are in scan_rules.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/pretokenize/steps.hpp"

namespace tokpack {

// What a scanner is compiled for.
struct ScanShape {
  enum class Family : std::uint8_t { kGpt2, kCl100k, kDeepseek } family = Family::kGpt2;
  bool marks = false;      // marks belong to words
  bool cased = false;      // words end where lower case turns to upper
  bool cut_first = false;  // numbers are cut out before the expression sees the text

  friend bool operator==(const ScanShape&, const ScanShape&) = default;
};

struct ScanRules {
  enum class Contractions : std::uint8_t { kNone, kAsWritten, kAnyCase };
  enum class Tail : std::uint8_t { kNone, kLines, kLinesAndSlashes };

  ScanShape shape;
  Contractions contractions = Contractions::kNone;
  unsigned digits = 0;      // numbers in a pretoken, at most; 0: any number
  Tail tail = Tail::kNone;  // what belongs to the symbols before it

  friend bool operator==(const ScanRules&, const ScanRules&) = default;
};

// The pre-tokenizers that cut as the rules say.
std::vector<StepText> texts_of(const ScanRules& rules);

// The rules by which a scanner cuts as these steps do, if there are such.
std::optional<ScanRules> rules_of(std::span<const Step> steps);

}  // namespace tokpack

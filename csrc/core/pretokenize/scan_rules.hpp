// One description of each pattern, from which scan_*.inc.hpp makes the scanners of all instruction
// sets.
#pragma once

#include <cstdint>

#include "core/pretokenize/pretokenize.hpp"

namespace tokpack {

struct ScanRules {
  enum class Family : std::uint8_t { kGpt2, kCl100k, kDeepseek } family;
  bool marks = false;      // marks belong to words
  unsigned digits = 0;     // numbers in a pretoken, at most; 0: any number
  bool cut_first = false;  // numbers are cut out before the pattern sees the text
  bool contractions = false;
  bool cased = false;  // words end where lower case turns to upper; slashes follow symbols
};

// REQUIRES: not kNone.
constexpr ScanRules scan_rules(Pattern pattern) {
  using Family = ScanRules::Family;
  switch (pattern) {
    case Pattern::kGpt2:
      return {.family = Family::kGpt2, .contractions = true};
    case Pattern::kDigitsGpt2:
      return {.family = Family::kGpt2, .digits = 1, .cut_first = true, .contractions = true};
    case Pattern::kLlama3:
      return {.family = Family::kCl100k, .digits = 3, .contractions = true};
    case Pattern::kQwen2:
      return {.family = Family::kCl100k, .digits = 1, .contractions = true};
    case Pattern::kQwen35:
      return {.family = Family::kCl100k, .marks = true, .digits = 1, .contractions = true};
    case Pattern::kO200k:
      return {.family = Family::kCl100k,
              .marks = true,
              .digits = 3,
              .contractions = true,
              .cased = true};
    case Pattern::kTekken:
      return {.family = Family::kCl100k, .marks = true, .digits = 1, .cased = true};
    case Pattern::kDeepseekV3:
      return {.family = Family::kDeepseek, .marks = true, .digits = 3, .cut_first = true};
    case Pattern::kNone:
      break;
  }
  return {};
}

}  // namespace tokpack

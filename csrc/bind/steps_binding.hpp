// The steps in which text is cut, as Python passes them.
#pragma once

#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "bind/bind.hpp"
#include "core/pretokenize/pretokenize.hpp"

namespace tokpack {

// The fields of a StepText.
using StepTuple = std::tuple<std::string, std::string, bool>;
// The name of a pattern, or its steps.
using PatternChoice = std::variant<std::string, std::vector<StepTuple>>;

inline std::vector<StepText> step_texts(const std::vector<StepTuple>& steps) {
  std::vector<StepText> texts;
  for (const auto& [kind, text, flag] : steps) texts.push_back({kind, text, flag});
  return texts;
}

// Throws ValueError for an unknown name, or for steps, with a phrase that says what is not
// understood.
inline Pretokenizer parse_pattern(const PatternChoice& pattern) {
  if (const auto* const name = std::get_if<std::string>(&pattern)) return Pretokenizer(*name);
  return Pretokenizer(step_texts(std::get<std::vector<StepTuple>>(pattern)));
}

}  // namespace tokpack

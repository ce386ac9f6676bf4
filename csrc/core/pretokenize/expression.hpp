// Regular expressions as the Hugging Face library's engine, Oniguruma, reads them: the part of its
// language that split patterns are written in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/text/code_points.hpp"

namespace tokpack {

struct Expression {
  static constexpr unsigned kUnbounded = ~0u;

  struct Node {
    enum class Kind : std::uint8_t {
      kSequence,  // all parts, one after the other; nothing without parts
      kChoice,    // one of the parts, the first one that leads to a match
      kRepeat,    // the part `least` to `most` times, as often as possible or, if lazy, as seldom
      kSet,       // one character of a set
      kAhead,     // the next character is of a set, or, with at_edge, the text ends
      kBehind,    // the last character is of a set, or, with at_edge, the text begins
      kLook,      // the part matches here, or, if negated, does not; no character is taken
    };
    Kind kind = Kind::kSequence;
    bool lazy = false;
    bool at_edge = false;
    bool negated = false;
    unsigned least = 0, most = 0;
    CodePoints set;
    std::vector<Node> parts;
  };

  Node root;
};

// Throws std::invalid_argument with a phrase that says what is not understood.
Expression parse_expression(std::string_view text);

}  // namespace tokpack

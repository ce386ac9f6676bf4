// An expression as a graph: what can come after what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/pretokenize/expression.hpp"
#include "core/text/code_points.hpp"

namespace tokpack {

struct Nfa {
  struct Node {
    enum class Kind : std::uint8_t {
      kCharacter,  // one of sets[which], then the next node
      kSplit,      // the first of the next nodes that leads to a match
      kAhead,      // only before one of sets[which], or, with `flag`, at the end
      kBehind,     // only where behinds[which] holds
      kLook,       // only where looks[which] matches or, with `flag`, where it does not
      kMatch,
    };
    Kind kind;
    bool flag = false;
    std::uint32_t which = 0;
    std::vector<std::uint32_t> next = {};
  };
  // The last character is of a set, or, with at_edge, the text begins.
  struct Behind {
    std::uint32_t set;
    bool at_edge;
    friend bool operator==(const Behind&, const Behind&) = default;
  };
  static constexpr std::size_t kMostBehinds = 4, kMostLooks = 3, kMostNodes = 4000;

  // Throws std::invalid_argument for an expression that is too large.
  explicit Nfa(const Expression& expression);

  std::vector<Node> nodes;
  std::vector<CodePoints> sets;
  std::vector<Behind> behinds;
  std::vector<std::uint32_t> looks;  // where each begins; it ends in a match
  std::uint32_t start = 0;

 private:
  std::uint32_t add(Node node);
  std::uint32_t build(const Expression::Node& node, std::uint32_t next);
  std::uint32_t build_repeat(const Expression::Node& node, std::uint32_t next);
  std::uint32_t build_look(const Expression::Node& node, std::uint32_t next);
  std::uint32_t build_behind(const Expression::Node& node, std::uint32_t next);
  std::uint32_t number_of(const CodePoints& set);

  bool in_look_ = false;
};

}  // namespace tokpack

#include "core/pretokenize/nfa.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace tokpack {

using Kind = Nfa::Node::Kind;

Nfa::Nfa(const Expression& expression) {
  const std::uint32_t match = add({.kind = Kind::kMatch});
  start = build(expression.root, match);
}

std::uint32_t Nfa::add(Node node) {
  if (nodes.size() >= kMostNodes) throw std::invalid_argument("too large an expression");
  nodes.push_back(std::move(node));
  return static_cast<std::uint32_t>(nodes.size() - 1);
}

std::uint32_t Nfa::number_of(const CodePoints& set) {
  const auto found = std::ranges::find(sets, set);
  const auto number = static_cast<std::uint32_t>(found - sets.begin());
  if (found == sets.end()) sets.push_back(set);
  return number;
}

// The node that the parts of an expression begin with, given the one that follows them.
std::uint32_t Nfa::build(const Expression::Node& node, std::uint32_t next) {
  using Part = Expression::Node::Kind;
  switch (node.kind) {
    case Part::kSequence:
      for (std::size_t i = node.parts.size(); i-- > 0;) next = build(node.parts[i], next);
      return next;
    case Part::kChoice: {
      Node split{.kind = Kind::kSplit};
      for (const Expression::Node& part : node.parts) split.next.push_back(build(part, next));
      return add(std::move(split));
    }
    case Part::kSet:
      return add({.kind = Kind::kCharacter, .which = number_of(node.set), .next = {next}});
    case Part::kAhead:
      return add({.kind = Kind::kAhead,
                  .flag = node.at_edge,
                  .which = number_of(node.set),
                  .next = {next}});
    case Part::kRepeat:
      return build_repeat(node, next);
    case Part::kBehind:
      return build_behind(node, next);
    case Part::kLook:
      break;
  }
  return build_look(node, next);
}

std::uint32_t Nfa::build_repeat(const Expression::Node& node, std::uint32_t next) {
  const Expression::Node& part = node.parts[0];
  const auto both = [&](std::uint32_t more) {
    return node.lazy ? std::vector{next, more} : std::vector{more, next};
  };
  std::uint32_t begin = next;
  if (node.most == Expression::kUnbounded) {
    begin = add({.kind = Kind::kSplit});
    const std::uint32_t more = build(part, begin);
    nodes[begin].next = both(more);
  } else {
    for (unsigned i = node.least; i < node.most; ++i) {
      const std::uint32_t more = build(part, begin);
      begin = add({.kind = Kind::kSplit, .next = both(more)});
    }
  }
  for (unsigned i = 0; i < node.least; ++i) begin = build(part, begin);
  return begin;
}

std::uint32_t Nfa::build_behind(const Expression::Node& node, std::uint32_t next) {
  const Behind behind{number_of(node.set), node.at_edge};
  const auto found = std::ranges::find(behinds, behind);
  const auto number = static_cast<std::uint32_t>(found - behinds.begin());
  if (found == behinds.end()) behinds.push_back(behind);
  if (behinds.size() > kMostBehinds) throw std::invalid_argument("too many looks behind");
  return add({.kind = Kind::kBehind, .which = number, .next = {next}});
}

std::uint32_t Nfa::build_look(const Expression::Node& node, std::uint32_t next) {
  if (in_look_) throw std::invalid_argument("a look ahead within another one");
  if (looks.size() == kMostLooks) throw std::invalid_argument("too many looks ahead");
  in_look_ = true;
  const std::uint32_t match = add({.kind = Kind::kMatch});
  looks.push_back(build(node.parts[0], match));
  in_look_ = false;
  return add({.kind = Kind::kLook,
              .flag = node.negated,
              .which = static_cast<std::uint32_t>(looks.size() - 1),
              .next = {next}});
}

}  // namespace tokpack

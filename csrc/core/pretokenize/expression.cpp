#include "core/pretokenize/expression.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/pretokenize/set_reader.hpp"

namespace tokpack {
namespace {

using Node = Expression::Node;
using Kind = Node::Kind;

constexpr unsigned kMostRepeats = 1000;

Node of_set(CodePoints set) {
  Node node;
  node.kind = Kind::kSet;
  node.set = std::move(set);
  return node;
}

Node edge(Kind kind, CodePoints set, bool at_edge) {
  Node node = of_set(std::move(set));
  node.kind = kind;
  node.at_edge = at_edge;
  return node;
}

Node with_parts(Kind kind, std::vector<Node> parts) {
  Node node;
  node.kind = kind;
  node.parts = std::move(parts);
  return node;
}

Node repeat(Node part, unsigned least, unsigned most, bool lazy) {
  Node node = with_parts(Kind::kRepeat, {std::move(part)});
  node.least = least;
  node.most = most;
  node.lazy = lazy;
  return node;
}

// Whether it can match without a character.
bool is_nullable(const Node& node) {
  switch (node.kind) {
    case Kind::kSet:
      return false;
    case Kind::kSequence:
      return std::ranges::all_of(node.parts, is_nullable);
    case Kind::kChoice:
      return std::ranges::any_of(node.parts, is_nullable);
    case Kind::kRepeat:
      return node.least == 0 || is_nullable(node.parts[0]);
    default:
      return true;
  }
}

// The set of a node that matches one character of a set, whatever comes behind it.
std::optional<CodePoints> as_set(const Node& node) {
  if (node.kind == Kind::kSet) return node.set;
  if (node.kind == Kind::kSequence && node.parts.size() == 1) return as_set(node.parts[0]);
  if (node.kind != Kind::kChoice) return std::nullopt;
  CodePoints all;
  for (const Node& part : node.parts) {
    const auto set = as_set(part);
    if (!set) return std::nullopt;
    all = all | *set;
  }
  return all;
}

// A repeated set that keeps all that it has taken: what follows never gets any of it back.
Node possessive(const Node& repeated) {
  const auto set = as_set(repeated.parts[0]);
  if (!set) throw std::invalid_argument("a possessive group");
  const Node stop = edge(Kind::kAhead, ~*set, true);
  if (repeated.most == Expression::kUnbounded) {
    return with_parts(Kind::kSequence, {repeated, stop});
  }
  if (repeated.most > 16) throw std::invalid_argument("a long possessive repetition");
  std::vector<Node> choices;
  for (unsigned count = repeated.most + 1; count-- > repeated.least;) {
    std::vector<Node> parts(count, of_set(*set));
    if (count < repeated.most) parts.push_back(stop);
    choices.push_back(with_parts(Kind::kSequence, std::move(parts)));
  }
  return with_parts(Kind::kChoice, std::move(choices));
}

// One expression. Names of methods are those of what they read.
class Parser : private SetReader {
 public:
  explicit Parser(std::string_view text) : SetReader(text) {}

  Expression whole() {
    Expression expression;
    expression.root = choice();
    if (!done()) refuse("a closing parenthesis without an opening one");
    return expression;
  }

 private:
  Node choice() {
    enter();
    std::vector<Node> choices{sequence()};
    while (take("|")) {
      before_ = 0;
      choices.push_back(sequence());
    }
    leave();
    return choices.size() == 1 ? std::move(choices[0])
                               : with_parts(Kind::kChoice, std::move(choices));
  }

  Node sequence() {
    std::vector<Node> parts;
    while (!done() && !sees("|") && !sees(")")) parts.push_back(quantified());
    return parts.size() == 1 ? std::move(parts[0]) : with_parts(Kind::kSequence, std::move(parts));
  }

  Node quantified() {
    Node node = atom();
    bool counted = false;
    unsigned least = 0, most = Expression::kUnbounded;
    if (take("?")) {
      most = 1;
    } else if (take("+")) {
      least = 1;
    } else if (!take("*")) {
      if (!interval(&least, &most)) return node;
      counted = true;
    }
    if (is_nullable(node)) refuse("a repetition of what may be empty");
    if (take("?")) {
      if (counted && least == most) refuse("a lazy repetition of a fixed number");
      return check_end(repeat(std::move(node), least, most, true));
    }
    node = repeat(std::move(node), least, most, false);
    if (!take("+")) return check_end(std::move(node));
    if (!counted) return check_end(possessive(node));
    // Behind a counted repetition it repeats this.
    if (least == 0) refuse("a repetition of what may be empty");
    return check_end(repeat(std::move(node), 1, Expression::kUnbounded, false));
  }

  Node check_end(Node node) {
    unsigned least = 0, most = 0;
    if (sees("?") || sees("*") || sees("+") || interval(&least, &most)) {
      refuse("a repetition of a repetition");
    }
    return node;
  }

  // {n}, {n,}, {,m} and {n,m}; anything else is text.
  bool interval(unsigned* least, unsigned* most) {
    const std::size_t begin = at_;
    if (!take("{")) return false;
    const auto first = number();
    const bool comma = take(",");
    const auto second = comma ? number() : first;
    if (!take("}") || (!first && !second)) {
      at_ = begin;
      return false;
    }
    *least = first.value_or(0);
    *most = second.value_or(Expression::kUnbounded);
    if (*least > *most || *least > kMostRepeats || (second && *most > kMostRepeats)) {
      refuse("a repetition " + std::string(text_.substr(begin, at_ - begin)));
    }
    return true;
  }

  std::optional<unsigned> number() {
    std::optional<unsigned> value;
    while (!done() && text_[at_] >= '0' && text_[at_] <= '9') {
      value =
          std::min(value.value_or(0) * 10 + static_cast<unsigned>(text_[at_++] - '0'), 100'000u);
    }
    return value;
  }

  Node atom() {
    if (take("(")) return group();
    if (take("[")) {
      before_ = 0;
      return of_set(set());
    }
    if (take("\\")) return escape();
    if (take(".")) return of_set(~CodePoints('\n', '\n'));
    if (take("$")) return edge(Kind::kAhead, CodePoints('\n', '\n'), true);
    if (take("^")) return line_begin();
    for (const std::string_view wrong : {"?", "*", "+"}) {
      if (sees(wrong)) refuse("a repetition of nothing");
    }
    return of_set(literal(take_character()));
  }

  static Node line_begin() {
    Node behind = with_parts(Kind::kSequence, {edge(Kind::kBehind, CodePoints('\n', '\n'), false),
                                               edge(Kind::kAhead, CodePoints::all(), false)});
    return with_parts(Kind::kChoice, {edge(Kind::kBehind, {}, true), std::move(behind)});
  }

  Node group() {
    const bool any_case = any_case_;
    if (take("?=")) return look(false);
    if (take("?!")) return look(true);
    if (take("?<=")) return behind(false);
    if (take("?<!")) return behind(true);
    const bool atomic = take("?>");
    if (!atomic && take("?")) {
      if (take("i:")) {
        any_case_ = true;
      } else if (take("<") || take("P<")) {
        while (!done() && !take(">")) ++at_;
      } else if (!take(":")) {
        refuse("a group (?" + std::string(text_.substr(at_, 1)));
      }
    }
    Node inside = choice();
    close();
    any_case_ = any_case;
    return atomic ? atomic_of(inside) : inside;
  }

  void close() {
    if (!take(")")) refuse("an opening parenthesis without a closing one");
  }

  // Only a repeated set can match in several ways that begin alike.
  static Node atomic_of(const Node& inside) {
    if (inside.kind == Kind::kRepeat && !inside.lazy) return possessive(inside);
    if (!as_set(inside)) refuse("an atomic group");
    return inside;
  }

  Node look(bool negated) {
    Node inside = choice();
    close();
    if (const auto set = as_set(inside)) {
      return edge(Kind::kAhead, negated ? ~*set : *set, negated);
    }
    Node node = with_parts(Kind::kLook, {std::move(inside)});
    node.negated = negated;
    return node;
  }

  Node behind(bool negated) {
    const Node inside = choice();
    close();
    const auto set = as_set(inside);
    if (!set) refuse("a look behind at more than one character");
    return edge(Kind::kBehind, negated ? ~*set : *set, negated);
  }

  // \b or, inverted, \B.
  static Node boundary(bool inverted) {
    const CodePoints word = CodePoints::words();
    const auto pair = [&](bool behind, bool ahead) {
      return with_parts(Kind::kSequence, {edge(Kind::kBehind, behind ? word : ~word, !behind),
                                          edge(Kind::kAhead, ahead ? word : ~word, !ahead)});
    };
    return with_parts(Kind::kChoice, {pair(true, inverted), pair(false, !inverted)});
  }

  Node escape() {
    if (take("A")) return edge(Kind::kBehind, {}, true);
    if (take("z")) return edge(Kind::kAhead, {}, true);
    if (take("b")) return boundary(false);
    if (take("B")) return boundary(true);
    if (const auto found = class_escape()) {
      before_ = 0;
      return of_set(*found);
    }
    return of_set(literal(character_escape()));
  }
};

}  // namespace

Expression parse_expression(std::string_view text) { return Parser(text).whole(); }

}  // namespace tokpack

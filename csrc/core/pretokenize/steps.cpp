#include "core/pretokenize/steps.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Behavior behavior_of(std::string_view name) {
  constexpr std::pair<std::string_view, Behavior> kNames[] = {
      {"Isolated", Behavior::kIsolated},
      {"Contiguous", Behavior::kContiguous},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Removed", Behavior::kRemoved},
  };
  for (const auto& [known, behavior] : kNames) {
    if (known == name) return behavior;
  }
  throw std::invalid_argument("the behavior " + std::string(name));
}

Expression one_of(CodePoints set) {
  Expression expression;
  expression.root.kind = Expression::Node::Kind::kSet;
  expression.root.set = std::move(set);
  return expression;
}

// A match is the longest text of one script. What is of any script belongs to what is before it; at
// the begin of a text it is in no match.
Expression of_one_script() {
  const std::vector<CodePoints> scripts = CodePoints::scripts();
  Expression expression;
  expression.root.kind = Expression::Node::Kind::kChoice;
  for (const CodePoints& script : std::span(scripts).subspan(1)) {
    Expression::Node more;
    more.kind = Expression::Node::Kind::kRepeat;
    more.most = Expression::kUnbounded;
    more.parts = {one_of(script | scripts[0]).root};
    expression.root.parts.emplace_back().parts = {one_of(script).root, std::move(more)};
  }
  return expression;
}

Step split(std::string_view kind, Automaton automaton, bool inverted) {
  Behavior behavior = behavior_of(kind);
  // What is removed is nothing where all text is matched, and what is between matches goes.
  if (behavior == Behavior::kRemoved && inverted && automaton.always_matches()) {
    behavior = Behavior::kIsolated;
  }
  return {std::move(automaton), behavior, inverted};
}

Step compile(const StepText& one, bool on_bytes) {
  if (one.kind == "Digits") {
    const Behavior behavior = one.flag ? Behavior::kIsolated : Behavior::kContiguous;
    return {Automaton(one_of(CodePoints::numeric()), on_bytes), behavior};
  }
  if (one.kind == "Punctuation") {
    return split(one.text, Automaton(one_of(CodePoints::punctuation()), on_bytes), false);
  }
  if (one.kind == "UnicodeScripts") {
    return {Automaton(of_one_script(), on_bytes), Behavior::kRemoved, true};
  }
  return split(one.kind, Automaton(parse_expression(one.text), on_bytes), one.flag);
}

// Of a Metaspace.
PieceChange change_of(const std::string& text) {
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || space + 1 == text.size()) {
    throw std::invalid_argument("a Metaspace without a character for spaces");
  }
  return {.prefix = parse_prefix(text.substr(0, space)), .space = text.substr(space + 1)};
}

}  // namespace

PrefixScheme parse_prefix(std::string_view name) {
  if (name == "never") return PrefixScheme::kNever;
  if (name == "first") return PrefixScheme::kFirst;
  if (name == "always") return PrefixScheme::kAlways;
  throw std::invalid_argument("prefix '" + std::string(name) + "' is none of never, first, always");
}

CompiledSteps compile_steps(std::span<const StepText> texts, bool of_bytes) {
  CompiledSteps compiled;
  std::vector<Step>& steps = compiled.steps;
  const auto change = [&](PieceChange how) {
    if (compiled.change) throw std::invalid_argument("two that put spaces in front");
    how.steps_before = steps.size();
    compiled.change = std::move(how);
  };
  bool on_bytes = false;
  for (const StepText& one : texts) {
    try {
      if (one.kind == "Metaspace") {
        if (on_bytes) throw std::invalid_argument("a Metaspace behind a ByteLevel");
        change(change_of(one.text));
        if (!one.flag) continue;
        const std::string& space = compiled.change->space;
        const auto character = decode_utf8(reinterpret_cast<const std::uint8_t*>(space.data()));
        steps.push_back(
            {Automaton(one_of({character.value, character.value})), Behavior::kMergedWithNext});
        continue;
      }
      if (one.kind != "ByteLevel") {
        steps.push_back(compile(one, on_bytes));
        continue;
      }
      if (on_bytes) throw std::invalid_argument("ByteLevel twice");
      if (!one.text.empty()) change({});
      if (one.flag) steps.push_back({Automaton(parse_expression(kGpt2))});
      on_bytes = true;
    } catch (const std::invalid_argument& error) {
      const auto number = std::to_string(&one - texts.data() + 1);
      throw std::invalid_argument(error.what() + (" in step " + number));
    }
  }
  if (on_bytes != of_bytes) throw std::invalid_argument(of_bytes ? "no ByteLevel" : "ByteLevel");
  return compiled;
}

bool removes_text(std::span<const Step> steps) {
  return std::ranges::any_of(steps,
                             [](const Step& step) { return step.behavior == Behavior::kRemoved; });
}

bool same_steps(std::span<const Step> a, std::span<const Step> b) {
  return std::ranges::equal(a, b, [](const Step& one, const Step& other) {
    const bool symmetric =
        one.behavior == Behavior::kIsolated || one.behavior == Behavior::kContiguous;
    return one.behavior == other.behavior && (symmetric || one.inverted == other.inverted) &&
           same(one.automaton, other.automaton);
  });
}

void StepPieces::begin(const std::uint8_t* data, std::size_t begin, std::size_t end) {
  matcher_.begin(data, begin, end);
  end_ = end;
  at_ = search_ = begin;
  last_match_end_ = Matcher::kNone;
  has_peeked_ = false;
  find_match();
}

// The library's iteration over matches: an empty match right behind the last one does not count.
void StepPieces::find_match() {
  for (;;) {
    const std::size_t match_end = matcher_.match(search_);
    const bool counts = match_end != search_ || last_match_end_ != match_end;
    if (match_end != Matcher::kNone && counts) {
      match_ = search_;
      match_end_ = last_match_end_ = search_ = match_end;
      return;
    }
    if (search_ == end_) break;
    search_ = matcher_.next_character(search_);
    if (!matcher_.may_match_nothing()) search_ = matcher_.next_begin(search_);
  }
  match_ = match_end_ = Matcher::kNone;
}

// The next match, or what is between it and the last one; may be empty.
bool StepPieces::next_part(Part* part) {
  if (match_ == Matcher::kNone) {
    if (at_ == end_) return false;
    *part = {at_ = end_, inverted_};
    return true;
  }
  if (at_ < match_) {
    *part = {at_ = match_, inverted_};
    return true;
  }
  *part = {at_ = match_end_, !inverted_};
  find_match();
  return true;
}

bool StepPieces::peek(Part* part) {
  if (!has_peeked_ && !next_part(&peeked_)) return false;
  has_peeked_ = true;
  *part = peeked_;
  return true;
}

bool StepPieces::next(std::size_t* piece_end) {
  Part part, more;
  if (behavior_ == Behavior::kIsolated) {
    const bool found = next_part(&part);
    *piece_end = part.end;
    return found;
  }
  if (behavior_ == Behavior::kRemoved) {
    const bool found = next_part(&part);
    *piece_end = part.end;
    is_removed_ = part.is_match;
    return found;
  }
  if (!peek(&part)) return false;
  has_peeked_ = false;
  switch (behavior_) {
    case Behavior::kIsolated:
    case Behavior::kRemoved:
      break;
    case Behavior::kContiguous:
      while (peek(&more) && more.is_match == part.is_match) {
        part = more;
        has_peeked_ = false;
      }
      break;
    case Behavior::kMergedWithPrevious:
      if (!part.is_match && peek(&more) && more.is_match) {
        part = more;
        has_peeked_ = false;
      }
      break;
    case Behavior::kMergedWithNext:
      if (part.is_match && peek(&more) && !more.is_match) {
        part = more;
        has_peeked_ = false;
      }
      break;
  }
  *piece_end = part.end;
  return true;
}

Pieces::Pieces(std::span<const Step> steps) : levels_(steps.begin(), steps.end()) {
  ends_.resize(levels_.size());
}

void Pieces::begin(const std::uint8_t* data, std::size_t size) {
  data_ = data;
  levels_[0].begin(data, 0, size);
  ends_[0] = level_ = 0;
}

bool Pieces::next(std::size_t* piece_end) {
  for (;;) {
    std::size_t end;
    if (!levels_[level_].next(&end)) {
      if (level_ == 0) return false;
      --level_;
      continue;
    }
    const std::size_t begin = std::exchange(ends_[level_], end);
    if (begin == end || levels_[level_].is_removed()) continue;
    if (level_ + 1 == levels_.size()) {
      piece_begin_ = begin;
      *piece_end = end;
      return true;
    }
    ++level_;
    levels_[level_].begin(data_, begin, end);
    ends_[level_] = begin;
  }
}

}  // namespace tokpack

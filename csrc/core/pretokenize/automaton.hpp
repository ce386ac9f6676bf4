// An expression as tables: where its matches end, one table access a character.
//
// The alternatives of an expression are tried in their order, and the first one that leads to a
// match counts, as in an engine that backtracks. A state is therefore a list of nodes of the
// expression's graph, the preferred one first, and it ends behind a node that is a match. What is
// asked of the next character is known when it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/pretokenize/classes.hpp"
#include "core/pretokenize/nfa.hpp"

namespace tokpack {

// A look ahead of any length: whether it matches, for each place of a text, found from the text's
// end to its begin.
class LookAhead {
 public:
  LookAhead(const Nfa& nfa, const Classes& classes, std::uint32_t look,
            const std::vector<std::uint8_t>& behind);

  // The state at the end of a text, and that before a character of a class.
  std::uint32_t at_end() const { return at_end_; }
  std::uint32_t before(std::uint32_t state, std::size_t of_class) const {
    return before_[state * classes_ + of_class];
  }
  // Whether a class leads to one state from all.
  bool decides(std::size_t of_class) const { return decides_[of_class]; }
  // Whether it matches in a state, given what holds of the character before.
  bool matches(std::uint32_t state, std::uint8_t behind) const {
    return matches_[state] >> behind & 1;
  }

 private:
  std::size_t classes_;
  std::uint32_t at_end_ = 0;
  std::vector<std::uint32_t> before_;
  std::vector<std::uint16_t> matches_;  // bit by bit for each value of `behind`
  std::vector<bool> decides_;
};

class Automaton {
 public:
  static constexpr std::uint32_t kDead = 0;

  // Throws std::invalid_argument with a phrase that says why there is none for an expression.
  explicit Automaton(const Expression& expression, bool on_bytes = false);

  const Classes& classes() const { return classes_; }
  const std::vector<LookAhead>& looks() const { return looks_; }

  // What holds of a character of a class for what comes behind it, and of the begin of a text.
  std::uint8_t behind(std::size_t of_class) const { return behind_[of_class]; }
  std::uint8_t behind_begin() const { return behind_.back(); }
  bool looks_behind() const { return starts_.size() > 1; }

  std::uint32_t start(std::uint8_t behind) const { return starts_[behind]; }
  // Where a symbol, which is read at a place, leads: to a state, and whether a match ends at that
  // place. A symbol is a class or, at the end, the number of classes; plus symbols() times the bits
  // of the looks ahead.
  struct Step {
    std::uint32_t state;
    bool matched;
  };
  Step step(std::uint32_t state, std::size_t symbol) const {
    const std::uint32_t both = steps_[state + symbol];
    return {both >> 1, (both & 1) != 0};
  }
  std::size_t symbols() const { return classes_.count() + 1; }

  // The steps of a state, by symbol: twice the next state, and 1 where a match ends.
  const std::uint32_t* steps() const { return steps_.data(); }

  std::size_t states() const { return steps_.size() / row_; }
  std::size_t number(std::uint32_t state) const { return state / row_; }  // below states()

  // Whether a match may begin with a character of a class, or before it.
  bool may_begin(std::size_t of_class) const { return may_begin_[of_class] != 0; }

  // Whether there may be an empty match.
  bool may_match_nothing() const { return may_match_nothing_; }

  // Whether each text begins with a match that is not empty.
  bool always_matches() const;

  // Whether both have the same matches in every text. Not found out where one looks far ahead.
  friend bool same(const Automaton& a, const Automaton& b);

 private:
  Automaton(const Nfa& nfa, bool on_bytes);

  Classes classes_;
  std::vector<std::uint8_t> behind_;  // by class; the last one is for the begin
  std::vector<LookAhead> looks_;
  std::vector<std::uint32_t> starts_;    // by behind()
  std::vector<std::uint8_t> may_begin_;  // by class
  bool may_match_nothing_ = false;
  std::vector<std::uint32_t> steps_;  // a row for each state, whose number is where the row begins
  std::size_t row_ = 0;               // symbols with all bits of looks
};

}  // namespace tokpack

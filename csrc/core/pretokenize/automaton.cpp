#include "core/pretokenize/automaton.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

namespace tokpack {
namespace {

using Kind = Nfa::Node::Kind;

constexpr std::size_t kMostStates = 2000;

// The nodes that a state stands for, in the order of their preference.
using Nodes = std::vector<std::uint32_t>;

// What is read at a place: a class or the end, and which looks ahead match.
struct Symbol {
  std::size_t of_class;
  std::size_t looks;
};

// Makes the states one after the other.
class States {
 public:
  States(const Nfa& nfa, const Classes& classes, const std::vector<std::uint8_t>& behind)
      : nfa_(nfa), classes_(classes), behind_(behind) {
    number({{}, 0});
  }

  std::uint32_t start(std::uint8_t behind) {
    Nodes nodes;
    begin_walk();
    follow(nfa_.start, behind, nullptr, nodes);
    return number({std::move(nodes), behind});
  }

  // For each state, its steps: the next state, and whether a match ends before the symbol.
  std::vector<std::pair<std::uint32_t, bool>> steps() {
    const std::size_t symbols = classes_.count() + 1;
    std::vector<std::pair<std::uint32_t, bool>> all;
    for (std::size_t state = 0; state < states_.size(); ++state) {
      for (std::size_t looks = 0; looks < std::size_t{1} << nfa_.looks.size(); ++looks) {
        for (std::size_t c = 0; c < symbols; ++c) all.push_back(step(state, {c, looks}));
      }
    }
    return all;
  }

 private:
  struct State {
    Nodes nodes;
    std::uint8_t behind;
    friend auto operator<=>(const State&, const State&) = default;
  };

  std::uint32_t number(State state) {
    if (state.nodes.empty() || nfa_.behinds.empty()) state.behind = 0;
    const auto [found, is_new] =
        numbers_.try_emplace(state, static_cast<std::uint32_t>(states_.size()));
    if (is_new) states_.push_back(std::move(state));
    if (states_.size() > kMostStates) throw std::invalid_argument("too many states");
    return found->second;
  }

  void begin_walk() {
    seen_.assign(nfa_.nodes.size(), false);
    matched_ = false;
  }

  // Adds to `nodes` those that take a character, and those whose condition is not known because
  // there is no symbol yet. Behind a match nothing is added.
  void follow(std::uint32_t at, std::uint8_t behind, const Symbol* symbol, Nodes& nodes) {
    if (matched_ || seen_[at]) return;
    seen_[at] = true;
    const Nfa::Node& node = nfa_.nodes[at];
    const auto go_on = [&] {
      for (const std::uint32_t next : node.next) follow(next, behind, symbol, nodes);
    };
    switch (node.kind) {
      case Kind::kSplit:
        return go_on();
      case Kind::kBehind:
        if (behind >> node.which & 1) go_on();
        return;
      case Kind::kAhead:
        if (symbol == nullptr) return nodes.push_back(at);
        if (is_ahead(node, symbol->of_class)) go_on();
        return;
      case Kind::kLook:
        if (symbol == nullptr) return nodes.push_back(at);
        if (((symbol->looks >> node.which & 1) != 0) != node.flag) go_on();
        return;
      case Kind::kMatch:
        matched_ = true;
        if (symbol == nullptr) nodes.push_back(at);
        return;
      case Kind::kCharacter:
        nodes.push_back(at);
    }
  }

  bool is_ahead(const Nfa::Node& node, std::size_t of_class) const {
    return of_class == classes_.count() ? node.flag : classes_.is_in(of_class, node.which);
  }

  std::pair<std::uint32_t, bool> step(std::size_t number_of_state, Symbol symbol) {
    const State state = states_[number_of_state];
    Nodes known;
    begin_walk();
    for (const std::uint32_t at : state.nodes) follow(at, state.behind, &symbol, known);
    const bool matched = matched_;
    Nodes next;
    if (symbol.of_class == classes_.count()) return {0, matched};
    const std::uint8_t behind = behind_[symbol.of_class];
    begin_walk();
    for (const std::uint32_t at : known) {
      const Nfa::Node& node = nfa_.nodes[at];
      if (classes_.is_in(symbol.of_class, node.which)) {
        follow(node.next[0], behind, nullptr, next);
      }
    }
    return {number({std::move(next), behind}), matched};
  }

  const Nfa& nfa_;
  const Classes& classes_;
  const std::vector<std::uint8_t>& behind_;
  std::vector<State> states_;
  std::map<State, std::uint32_t> numbers_;
  std::vector<bool> seen_;
  bool matched_ = false;
};

// By class, bit by bit, which of the graph's conditions about the character before hold; and, as
// the last one, at the begin of a text.
std::vector<std::uint8_t> behinds(const Nfa& nfa, const Classes& classes) {
  std::vector<std::uint8_t> all(classes.count() + 1);
  for (std::size_t i = 0; i < nfa.behinds.size(); ++i) {
    for (std::size_t c = 0; c < classes.count(); ++c) {
      all[c] |= static_cast<std::uint8_t>(classes.is_in(c, nfa.behinds[i].set) << i);
    }
    all.back() |= static_cast<std::uint8_t>(nfa.behinds[i].at_edge << i);
  }
  return all;
}

// For each value of `behind`, from which nodes a match can be reached.
using Reached = std::vector<std::vector<bool>>;

// What is reached at a place where a character of a class (or the end) comes next, of which
// `after` says what is reached behind it.
Reached reached(const Nfa& nfa, const Classes& classes, std::size_t of_class,
                const std::vector<bool>& after) {
  Reached all(std::size_t{1} << nfa.behinds.size(), std::vector<bool>(nfa.nodes.size()));
  for (std::size_t behind = 0; behind < all.size(); ++behind) {
    std::vector<bool>& now = all[behind];
    const auto matches = [&](const Nfa::Node& node) {
      const auto some = [&] {
        return std::ranges::any_of(node.next, [&](std::uint32_t next) { return now[next]; });
      };
      const bool at_end = of_class == classes.count();
      switch (node.kind) {
        case Kind::kCharacter:
          return !at_end && classes.is_in(of_class, node.which) && after[node.next[0]];
        case Kind::kSplit:
          return some();
        case Kind::kAhead:
          return (at_end ? node.flag : classes.is_in(of_class, node.which)) && some();
        case Kind::kBehind:
          return (behind >> node.which & 1) != 0 && some();
        case Kind::kLook:
          return false;
        case Kind::kMatch:
          break;
      }
      return true;
    };
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = 0; i < nfa.nodes.size(); ++i) {
        if (now[i] || !matches(nfa.nodes[i])) continue;
        now[i] = changed = true;
      }
    }
  }
  return all;
}

}  // namespace

LookAhead::LookAhead(const Nfa& nfa, const Classes& classes, std::uint32_t look,
                     const std::vector<std::uint8_t>& behind)
    : classes_(classes.count()), decides_(classes.count(), true) {
  std::map<Reached, std::uint32_t> numbers;
  std::vector<Reached> states;
  const auto number = [&](Reached state) {
    const auto [found, is_new] =
        numbers.try_emplace(state, static_cast<std::uint32_t>(states.size()));
    if (is_new) states.push_back(std::move(state));
    if (states.size() > kMostStates) throw std::invalid_argument("too many states");
    return found->second;
  };
  at_end_ = number(reached(nfa, classes, classes_, {}));
  for (std::size_t s = 0; s < states.size(); ++s) {
    std::uint16_t matching = 0;
    for (std::size_t b = 0; b < states[s].size(); ++b) matching |= states[s][b][look] << b;
    matches_.push_back(matching);
    for (std::size_t c = 0; c < classes_; ++c) {
      const std::vector<bool> after = states[s][behind[c]];
      before_.push_back(number(reached(nfa, classes, c, after)));
    }
  }
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (before_[i] != before_[i % classes_]) decides_[i % classes_] = false;
  }
}

Automaton::Automaton(const Expression& expression, bool on_bytes)
    : Automaton(Nfa(expression), on_bytes) {}

Automaton::Automaton(const Nfa& nfa, bool on_bytes)
    : classes_(nfa.sets, on_bytes), behind_(behinds(nfa, classes_)) {
  for (const std::uint32_t look : nfa.looks) looks_.emplace_back(nfa, classes_, look, behind_);
  row_ = symbols() << nfa.looks.size();
  States states(nfa, classes_, behind_);
  for (std::size_t b = 0; b < std::size_t{1} << nfa.behinds.size(); ++b) {
    starts_.push_back(states.start(static_cast<std::uint8_t>(b)) *
                      static_cast<std::uint32_t>(row_));
  }
  for (const auto& [state, matched] : states.steps()) {
    steps_.push_back(state * static_cast<std::uint32_t>(row_) << 1 | matched);
  }
  may_begin_.resize(classes_.count());
  for (const std::uint32_t start : starts_) {
    for (std::size_t symbol = 0; symbol < row_; ++symbol) {
      const std::size_t of_class = symbol % symbols();
      const Step first = step(start, symbol);
      may_match_nothing_ |= first.matched;
      if (of_class < classes_.count() && (first.matched || first.state != kDead)) {
        may_begin_[of_class] = 1;
      }
    }
  }
}

bool Automaton::always_matches() const {
  std::set<std::uint32_t> seen;
  std::vector<std::uint32_t> left;
  for (const std::uint32_t start : starts_) {
    for (std::size_t symbol = 0; symbol < row_; ++symbol) {
      if (symbol % symbols() == classes_.count()) continue;  // there is a character
      const Step first = step(start, symbol);
      if (first.matched || first.state == kDead) return false;
      left.push_back(first.state);
    }
  }
  while (!left.empty()) {
    const std::uint32_t state = left.back();
    left.pop_back();
    if (!seen.insert(state).second) continue;
    for (std::size_t symbol = 0; symbol < row_; ++symbol) {
      const Step next = step(state, symbol);
      if (next.matched) continue;
      if (next.state == kDead) return false;
      left.push_back(next.state);
    }
  }
  return true;
}

namespace {

// Pairs of numbers of classes that some character has, one in each automaton.
std::set<std::pair<std::size_t, std::size_t>> common_classes(const Classes& a, const Classes& b) {
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  const auto &runs = a.runs(), &others = b.runs();
  for (std::size_t i = 0, j = 0; i < runs.size() && j < others.size();) {
    pairs.insert({runs[i].of_class, others[j].of_class});
    const std::uint32_t i_end = i + 1 < runs.size() ? runs[i + 1].first : CodePoints::kLimit;
    const std::uint32_t j_end = j + 1 < others.size() ? others[j + 1].first : CodePoints::kLimit;
    i += i_end <= j_end;
    j += j_end <= i_end;
  }
  return pairs;
}

}  // namespace

bool same(const Automaton& a, const Automaton& b) {
  if (!a.looks_.empty() || !b.looks_.empty()) return false;
  if (a.classes_.on_bytes() != b.classes_.on_bytes()) return false;
  // Both run over all texts side by side. What counts is that the last match has ended at the same
  // place when both have come to an end.
  struct Both {
    std::uint32_t one, other;
    bool agree;
    auto operator<=>(const Both&) const = default;
  };
  auto symbols = common_classes(a.classes_, b.classes_);
  std::vector<Both> left{{a.start(a.behind_begin()), b.start(b.behind_begin()), true}};
  for (const auto& [x, y] : symbols) {
    left.push_back({a.start(a.behind(x)), b.start(b.behind(y)), true});
  }
  symbols.insert({a.classes_.count(), b.classes_.count()});
  std::set<Both> seen;
  while (!left.empty()) {
    const Both both = left.back();
    left.pop_back();
    if (!seen.insert(both).second) continue;
    const bool ended = both.one == Automaton::kDead && both.other == Automaton::kDead;
    if (ended && !both.agree) return false;
    for (const auto& [x, y] : symbols) {
      const Automaton::Step one = a.step(both.one, x), other = b.step(both.other, y);
      const bool agree = one.matched || other.matched ? one.matched == other.matched : both.agree;
      left.push_back({one.state, other.state, agree});
    }
  }
  return true;
}

}  // namespace tokpack

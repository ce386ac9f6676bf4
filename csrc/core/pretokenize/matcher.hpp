// Running an automaton over a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/pretokenize/automaton.hpp"

namespace tokpack {

// The matches of an expression in one text after the other.
class Matcher {
 public:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  explicit Matcher(const Automaton& automaton) : automaton_(&automaton) {}

  // The text is [begin, end) of what is at `data`; places are counted from `data`. REQUIRES: UTF-8,
  // unless characters are bytes.
  void begin(const std::uint8_t* data, std::size_t begin, std::size_t end);

  // The end of the match at a place, or kNone. REQUIRES: begin <= at <= end.
  std::size_t match(std::size_t at) {
    return automaton_->looks().empty() ? match_from<false>(at) : match_from<true>(at);
  }

  bool may_match_nothing() const { return automaton_->may_match_nothing(); }

  // The first place from `at` on where a match may begin, or the end. REQUIRES: at <= end.
  std::size_t next_begin(std::size_t at) const;

  // The place behind the character at a place. REQUIRES: at < end.
  std::size_t next_character(std::size_t at) const;

 private:
  // So many bytes beyond the last match are looked at without remembering it.
  static constexpr std::size_t kFar = 256;

  struct Character {
    std::size_t of_class;
    std::size_t next;  // where the next one is
  };
  Character character_at(std::size_t at) const;
  std::size_t character_before(std::size_t at) const;
  std::uint8_t behind(std::size_t at) const;

  template <bool kLooks>
  std::size_t match_from(std::size_t at);
  template <bool kLooks>
  std::size_t match_far(std::size_t at);
  template <bool kLooks>
  std::size_t symbol_at(std::size_t at, std::size_t* next);

  void look_ahead(std::size_t at);

  const Automaton* automaton_;
  const std::uint8_t* data_ = nullptr;
  std::size_t begin_ = 0, end_ = 0;

  // The bits of the looks ahead for places from looked_ on, to before looked_end_.
  Buffer<std::uint8_t> bits_;
  std::size_t looked_ = 0, looked_end_ = 0;

  // From which states no match ends, state by state for each place from far_ on. A match that comes
  // to one need not go on, so that a text in which all matches look far ahead takes no more than a
  // pass for each state.
  std::vector<bool> hopeless_;
  std::size_t far_ = 0;
};

}  // namespace tokpack

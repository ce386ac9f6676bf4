#include "core/pretokenize/matcher.hpp"

#include <algorithm>

#include "core/text/utf8.hpp"

namespace tokpack {

void Matcher::begin(const std::uint8_t* data, std::size_t begin, std::size_t end) {
  data_ = data;
  begin_ = begin;
  end_ = end;
  looked_ = looked_end_ = 0;
  hopeless_.clear();
}

inline Matcher::Character Matcher::character_at(std::size_t at) const {
  const Classes& classes = automaton_->classes();
  const std::uint8_t byte = data_[at];
  if (byte < 0x80 || classes.on_bytes()) return {classes.of_byte(byte), at + 1};
  const CodePoint c = decode_utf8(data_ + at);
  return {classes.of(c.value), at + c.size};
}

std::size_t Matcher::next_character(std::size_t at) const { return character_at(at).next; }

std::size_t Matcher::next_begin(std::size_t at) const {
  while (at < end_) {
    const Character c = character_at(at);
    if (automaton_->may_begin(c.of_class)) break;
    at = c.next;
  }
  return at;
}

std::size_t Matcher::character_before(std::size_t at) const {
  if (automaton_->classes().on_bytes()) return at - 1;
  do --at;
  while (at > begin_ && (data_[at] & 0xC0) == 0x80);
  return at;
}

inline std::uint8_t Matcher::behind(std::size_t at) const {
  if (!automaton_->looks_behind()) return 0;
  if (at == begin_) return automaton_->behind_begin();
  return automaton_->behind(character_at(character_before(at)).of_class);
}

template <bool kLooks>
inline std::size_t Matcher::symbol_at(std::size_t at, std::size_t* next) {
  std::size_t symbol = automaton_->classes().count();
  if (at < end_) {
    const Character c = character_at(at);
    symbol = c.of_class;
    *next = c.next;
  }
  if constexpr (kLooks) {
    if (at < looked_ || at >= looked_end_) look_ahead(at);
    symbol += automaton_->symbols() * bits_[at - looked_];
  }
  return symbol;
}

template <bool kLooks>
std::size_t Matcher::match_from(std::size_t at) {
  const std::uint32_t* const steps = automaton_->steps();
  std::uint32_t state = automaton_->start(behind(at));
  std::size_t last = kNone, place = at, next = at;
  for (;;) {
    for (const std::size_t pause = place + kFar; place < pause; place = next) {
      const std::uint32_t step = steps[state + symbol_at<kLooks>(place, &next)];
      if (step & 1) last = place;
      state = step >> 1;
      if (state == Automaton::kDead) return last;
    }
    if (last == kNone || place - last > kFar) return match_far<kLooks>(at);
  }
}

// As match_from(), with an eye on hopeless states.
template <bool kLooks>
std::size_t Matcher::match_far(std::size_t at) {
  const std::size_t states = automaton_->states();
  if (hopeless_.empty() || at >= far_ + hopeless_.size() / states) {
    hopeless_.clear();
    far_ = at;
  }
  std::uint32_t state = automaton_->start(behind(at));
  std::size_t last = kNone, place = at;
  std::vector<std::size_t> passed;  // behind the last match, places and states as in hopeless_
  for (std::size_t next = at; state != Automaton::kDead; place = next) {
    const std::size_t here = (place - far_) * states + automaton_->number(state);
    if (here < hopeless_.size() && hopeless_[here]) break;
    passed.push_back(here);
    const Automaton::Step step = automaton_->step(state, symbol_at<kLooks>(place, &next));
    if (step.matched) {
      last = place;
      passed.clear();
    }
    state = step.state;
  }
  if (!passed.empty()) {
    hopeless_.resize(std::max(hopeless_.size(), (place - far_ + 1) * states));
    for (const std::size_t one : passed) hopeless_[one] = true;
  }
  return last;
}

// Finds the bits for places from `at` on: from where a character decides them, whatever comes
// behind it, back to there.
void Matcher::look_ahead(std::size_t at) {
  constexpr std::size_t kAtOnce = 4096;
  const std::vector<LookAhead>& looks = automaton_->looks();
  const auto decides = [&](std::size_t of_class) {
    return std::ranges::all_of(looks, [&](const auto& look) { return look.decides(of_class); });
  };
  std::size_t from = at;
  while (from < end_) {
    const Character c = character_at(from);
    if (from - at >= kAtOnce && decides(c.of_class)) break;
    from = c.next;
  }
  looked_ = at;
  looked_end_ = from + 1;
  bits_.resize(from + 1 - at);
  std::fill_n(bits_.data(), bits_.size(), std::uint8_t{0});
  for (std::size_t i = 0; i < looks.size(); ++i) {
    std::uint32_t state = looks[i].at_end();
    for (std::size_t place = from;; place = character_before(place)) {
      if (place < end_) state = looks[i].before(state, character_at(place).of_class);
      bits_[place - at] |= static_cast<std::uint8_t>(looks[i].matches(state, behind(place)) << i);
      if (place == at) break;
    }
  }
}

template std::size_t Matcher::match_from<false>(std::size_t);
template std::size_t Matcher::match_from<true>(std::size_t);

}  // namespace tokpack

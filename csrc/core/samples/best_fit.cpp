#include "core/samples/best_fit.hpp"

#include <array>
#include <bit>

namespace tokpack {

NumberSet::NumberSet(std::size_t size) {
  do {
    size = (size + 63) / 64;
    levels_.emplace_back(size, 0);
  } while (size > 1);
}

void NumberSet::add(std::size_t number) {
  for (auto& level : levels_) {
    level[number / 64] |= std::uint64_t{1} << number % 64;
    number /= 64;
  }
}

void NumberSet::remove(std::size_t number) {
  for (auto& level : levels_) {
    level[number / 64] &= ~(std::uint64_t{1} << number % 64);
    if (level[number / 64] != 0) return;
    number /= 64;
  }
}

std::int64_t NumberSet::at_least(std::size_t number) const {
  std::size_t up = 0;
  std::uint64_t word = 0;
  for (; up < levels_.size(); ++up, number = number / 64 + 1) {
    if (number / 64 >= levels_[up].size()) return kNone;
    word = levels_[up][number / 64] >> number % 64;
    if (word != 0) break;
  }
  if (word == 0) return kNone;
  number += static_cast<std::size_t>(std::countr_zero(word));
  while (up-- > 0) {
    number = number * 64 + static_cast<std::size_t>(std::countr_zero(levels_[up][number]));
  }
  return static_cast<std::int64_t>(number);
}

BestFit::BestFit(std::int64_t capacity, std::int64_t least)
    : capacity_(static_cast<std::int32_t>(capacity)),
      least_(static_cast<std::int32_t>(least)),
      rooms_(static_cast<std::size_t>(capacity) + 1),
      newest_(static_cast<std::size_t>(capacity) + 1, kNone) {}

std::size_t BestFit::pack(std::span<const std::int32_t> lengths,
                          std::span<std::int32_t> sample_of) {
  sort_longest_first(lengths);
  room_.clear();
  older_.clear();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] == 0) sample_of[i] = kNone;
  }
  for (const std::uint16_t position : sorted_) sample_of[position] = put(lengths[position]);
  for (const std::int32_t left : room_) {
    const auto room = static_cast<std::size_t>(left);
    if (newest_[room] != kNone) rooms_.remove(room);
    newest_[room] = kNone;
  }
  return room_.size();
}

std::int32_t BestFit::put(std::int32_t length) {
  const std::int64_t found = rooms_.at_least(static_cast<std::size_t>(length));
  std::int32_t sample;
  if (found == NumberSet::kNone) {
    sample = static_cast<std::int32_t>(room_.size());
    room_.push_back(capacity_);
    older_.push_back(kNone);
  } else {
    const auto room = static_cast<std::size_t>(found);
    sample = newest_[room];
    newest_[room] = older_[static_cast<std::size_t>(sample)];
    if (newest_[room] == kNone) rooms_.remove(room);
  }
  const auto number = static_cast<std::size_t>(sample);
  room_[number] -= length;
  if (room_[number] >= least_) {
    const auto room = static_cast<std::size_t>(room_[number]);
    older_[number] = newest_[room];
    if (newest_[room] == kNone) rooms_.add(room);
    newest_[room] = sample;
  }
  return sample;
}

// Positions of the lengths above 0, by stable passes over the digits of capacity - length.
void BestFit::sort_longest_first(std::span<const std::int32_t> lengths) {
  constexpr unsigned kBits = 12;
  sorted_.clear();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > 0) sorted_.push_back(static_cast<std::uint16_t>(i));
  }
  spare_.resize(sorted_.size());
  for (unsigned shift = 0; capacity_ >> shift > 0; shift += kBits) {
    const auto digit = [&](std::uint16_t position) {
      return static_cast<std::size_t>((capacity_ - lengths[position]) >> shift) % (1u << kBits);
    };
    std::array<std::uint32_t, (1u << kBits) + 1> begins{};
    for (const std::uint16_t position : sorted_) ++begins[digit(position) + 1];
    for (std::size_t d = 1; d < begins.size(); ++d) begins[d] += begins[d - 1];
    for (const std::uint16_t position : sorted_) spare_[begins[digit(position)]++] = position;
    sorted_.swap(spare_);
  }
}

}  // namespace tokpack

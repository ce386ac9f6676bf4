// Built with -ffp-contract=off: the greedy blend must round twice, unless it is told not to.
#include "core/samples/megatron_order.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tokpack {
namespace {

constexpr std::size_t kAhead = 256;  // swaps drawn before they are made, to prefetch their memory
constexpr std::uint64_t kWide = std::uint64_t{1} << 32;

template <class T>
void swap_all(std::span<T> values, std::size_t last, const std::array<std::uint32_t, kAhead>& with,
              std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) std::swap(values[last - i], values[with[i]]);
}

// The swaps of positions last, last - 1 ... first, all of which have the same mask.
template <class T>
void shuffle_octave(Mt19937& random, std::span<T> values, std::size_t last, std::size_t first) {
  const std::uint32_t mask = std::numeric_limits<std::uint32_t>::max() >>
                             std::countl_zero(static_cast<std::uint32_t>(last));
  std::array<std::uint32_t, kAhead> with;
  while (last >= first) {
    const std::size_t count = std::min(kAhead, last - first + 1);
    auto bound = static_cast<std::uint32_t>(last);
    for (std::size_t drawn = 0; drawn < count;) {  // no branch on whether a draw is rejected
      const std::uint32_t target = random.next32() & mask;
      with[drawn] = target;
      const std::uint32_t taken = target <= bound ? 1 : 0;
      __builtin_prefetch(&values[std::min(target, bound)], 1);
      drawn += taken;
      bound -= taken;
    }
    swap_all(values, last, with, count);
    last -= count;
  }
}

template <class T>
void shuffle(Mt19937& random, std::span<T> values) {
  if (values.size() < 2) return;
  std::uint64_t last = values.size() - 1;
  for (; last >= kWide; --last) {
    const std::uint64_t mask = std::numeric_limits<std::uint64_t>::max() >> std::countl_zero(last);
    std::uint64_t target = random.next64() & mask;
    while (target > last) target = random.next64() & mask;
    std::swap(values[last], values[target]);
  }
  while (last > 0) {
    const std::size_t first = std::bit_floor(static_cast<std::size_t>(last));
    shuffle_octave(random, values, static_cast<std::size_t>(last), first);
    last = first - 1;
  }
}

}  // namespace

void numpy_shuffle(Mt19937& random, std::span<std::uint32_t> values) { shuffle(random, values); }

void numpy_shuffle(Mt19937& random, std::span<std::uint64_t> values) { shuffle(random, values); }

void numpy_shuffle(Mt19937& random, std::span<SequenceEntry> values) { shuffle(random, values); }

void number_sequences(const std::uint8_t* lengths, std::int64_t first,
                      std::span<SequenceEntry> entries) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::int32_t length;
    std::memcpy(&length, lengths + i * sizeof length, sizeof length);
    if (length < 0) {
      throw std::invalid_argument("a sequence has " + std::to_string(length) + " tokens");
    }
    entries[i].set(static_cast<std::uint32_t>(first + static_cast<std::int64_t>(i)), length);
  }
}

SampleWalk::SampleWalk(std::span<const SequenceEntry> entries, const std::uint8_t* lengths,
                       std::size_t count, std::int64_t first, std::int64_t seq_length, bool extra)
    : entries_(entries),
      lengths_(lengths),
      count_(count),
      first_sequence_(first),
      seq_length_(seq_length),
      late_(extra ? 0 : 1),
      target_(-late_) {}

std::int64_t SampleWalk::look_up(std::uint32_t sequence) const {
  const auto i = static_cast<std::size_t>(std::int64_t{sequence} - first_sequence_);
  if (i >= count_) {
    throw std::invalid_argument("sequence " + std::to_string(sequence) + " has no length");
  }
  std::int32_t length;
  std::memcpy(&length, lengths_ + i * sizeof length, sizeof length);
  return length;
}

template <class T>
std::size_t SampleWalk::fill_rows(std::span<T> rows) {
  const std::size_t count = rows.size() / 2;
  std::size_t row = 0;
  if (at_start_ && count > 0) {  // also where the first sequences are empty
    rows[0] = rows[1] = 0;
    row = 1;
    target_ += seq_length_;
    at_start_ = false;
  }
  // Local copies: the compiler knows that writing rows does not change them.
  std::size_t position = position_;
  std::int64_t begin = begin_, end = end_, target = target_;
  while (row < count) {
    for (; end > target && row < count; ++row, target += seq_length_) {
      rows[2 * row] = static_cast<T>(position - 1);
      rows[2 * row + 1] = static_cast<T>(target + late_ - begin);
    }
    if (row == count || position == entries_.size()) break;
    const SequenceEntry& entry = entries_[position++];
    begin = end;
    end += entry.is_long() ? look_up(entry.sequence()) : entry.length();
  }
  position_ = position;
  begin_ = begin;
  end_ = end;
  target_ = target;
  return row;
}

std::size_t SampleWalk::fill(std::span<std::int32_t> rows) { return fill_rows(rows); }

std::size_t SampleWalk::fill(std::span<std::int64_t> rows) { return fill_rows(rows); }

std::size_t megatron_blend(std::span<const double> weights, std::span<const std::int64_t> limits,
                           bool fused, std::span<std::int16_t> datasets,
                           std::span<std::int64_t> samples) {
  std::vector<std::int64_t> counts(weights.size(), 0);
  for (std::size_t sample = 0; sample < samples.size(); ++sample) {
    const double wanted = std::max(static_cast<double>(sample), 1.0);
    std::size_t neediest = weights.size();
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!limits.empty() && counts[i] >= limits[i]) continue;
      const auto had = static_cast<double>(counts[i]);
      const double lack = fused ? std::fma(weights[i], wanted, -had) : weights[i] * wanted - had;
      if (lack > most) {
        most = lack;
        neediest = i;
      }
    }
    if (neediest == weights.size()) return sample;
    datasets[sample] = static_cast<std::int16_t>(neediest);
    samples[sample] = counts[neediest]++;
  }
  return samples.size();
}

}  // namespace tokpack

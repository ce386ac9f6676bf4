// The order of samples of the Megatron family: numpy's shuffle, sample indices, greedy blends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

#include "core/mt19937.hpp"

namespace tokpack {

// numpy's RandomState.shuffle of a one-dimensional array: the same permutation, the same draws.
void numpy_shuffle(Mt19937& random, std::span<std::uint32_t> values);
void numpy_shuffle(Mt19937& random, std::span<std::uint64_t> values);

// Lengths of the sequences first, first + 1 ...: in 16 bits where they fit, so that twice as many
// are near, and kLong for longer ones, which are looked up. `full` points to int32, aligned or not.
struct Lengths {
  static constexpr std::uint16_t kLong = 65535;

  const std::uint8_t* full;
  std::span<const std::uint16_t> narrow;
  std::int64_t first;

  std::size_t place(std::int32_t sequence) const {
    return static_cast<std::size_t>(sequence - first);
  }
  // Throws std::invalid_argument for a sequence that has no length here.
  std::int64_t at(std::int32_t sequence) const {
    const std::size_t i = place(sequence);
    if (i >= narrow.size()) {
      throw std::invalid_argument("sequence " + std::to_string(sequence) + " has no length");
    }
    if (narrow[i] != kLong) return narrow[i];
    std::int32_t length;
    std::memcpy(&length, full + i * sizeof length, sizeof length);
    return length;
  }
};

// Writes lengths in 16 bits and returns their sum. Throws std::invalid_argument for a negative one.
std::int64_t narrow_lengths(const std::uint8_t* lengths, std::span<std::uint16_t> narrow);

// Where samples begin: row k is a position in `documents` and an offset in tokens into the sequence
// there. A sample is `seq_length` tokens; with `extra`, one more, which is the first of the next
// sample too. What is given is viewed, not copied.
class SampleWalk {
 public:
  SampleWalk(const Lengths& lengths, std::span<const std::int32_t> documents,
             std::int64_t seq_length, bool extra);

  // Writes the next rows [n, 2]. Returns how many the tokens suffice for.
  std::size_t fill(std::span<std::int32_t> rows);
  std::size_t fill(std::span<std::int64_t> rows);

 private:
  template <class T>
  std::size_t fill_rows(std::span<T> rows);

  static constexpr std::size_t kAhead = 256;  // lengths asked for before they are needed

  Lengths lengths_;
  std::span<const std::int32_t> documents_;
  std::int64_t seq_length_;
  std::int64_t late_;  // without the extra token a sample may begin behind a sequence's last token
  std::int64_t target_;               // the next sample begins in the sequence that ends behind it
  std::size_t position_ = 0;          // sequences read
  std::int64_t begin_ = 0, end_ = 0;  // tokens before and behind the last of them
  bool first_ = true;
};

// For each sample, the dataset that lacks most of its share, and that dataset's next sample.
// No dataset gives more than limits[i] samples, where limits are given. `fused` rounds the lack
// once, as a compiler does that contracts to a fused multiply-add. Returns the samples placed:
// fewer than there is room for once every limit is reached.
std::size_t megatron_blend(std::span<const double> weights, std::span<const std::int64_t> limits,
                           bool fused, std::span<std::int16_t> datasets,
                           std::span<std::int64_t> samples);

}  // namespace tokpack

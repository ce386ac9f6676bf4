// The order of samples of the Megatron family: numpy's shuffle, sample indices, greedy blends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/samples/mt19937.hpp"

namespace tokpack {

// A sequence and its length in six bytes. They are shuffled together: to look the lengths up
// afterwards would be a cache miss for each sequence, which takes longer than everything else.
class SequenceEntry {
 public:
  void set(std::uint32_t sequence, std::int32_t length) {
    low_ = static_cast<std::uint16_t>(sequence);
    high_ = static_cast<std::uint16_t>(sequence >> 16);
    stored_ = length < kLong ? static_cast<std::uint16_t>(length + 1) : std::uint16_t{0};
  }
  std::uint32_t sequence() const { return std::uint32_t{high_} << 16 | low_; }
  bool is_long() const { return stored_ == 0; }        // the length does not fit
  std::int64_t length() const { return stored_ - 1; }  // unless is_long()

 private:
  static constexpr std::int32_t kLong = 65535;

  std::uint16_t low_, high_;
  std::uint16_t stored_;  // the length plus one; 0 for kLong tokens and more
};
static_assert(sizeof(SequenceEntry) == 6);

// numpy's RandomState.shuffle of a one-dimensional array: the same permutation, the same draws.
void numpy_shuffle(Mt19937& random, std::span<std::uint32_t> values);
void numpy_shuffle(Mt19937& random, std::span<std::uint64_t> values);
void numpy_shuffle(Mt19937& random, std::span<SequenceEntry> values);

// Writes the entries of the sequences first, first + 1 ... whose `lengths` are int32, aligned or
// not. Throws std::invalid_argument for a negative length.
void number_sequences(const std::uint8_t* lengths, std::int64_t first,
                      std::span<SequenceEntry> entries);

// Where samples begin: row k is a position in `entries` and an offset in tokens into the sequence
// there. A sample is `seq_length` tokens; with `extra`, one more, which is the first of the next
// sample too. `lengths` int32 [count] are those of the sequences first, first + 1 ...; what is
// given is viewed, not copied.
class SampleWalk {
 public:
  SampleWalk(std::span<const SequenceEntry> entries, const std::uint8_t* lengths, std::size_t count,
             std::int64_t first, std::int64_t seq_length, bool extra);

  // Writes the next rows [n, 2]. Returns how many the tokens suffice for. Throws
  // std::invalid_argument for a sequence that has no length.
  std::size_t fill(std::span<std::int32_t> rows);
  std::size_t fill(std::span<std::int64_t> rows);

 private:
  template <class T>
  std::size_t fill_rows(std::span<T> rows);
  std::int64_t look_up(std::uint32_t sequence) const;

  std::span<const SequenceEntry> entries_;
  const std::uint8_t* lengths_;
  std::size_t count_;
  std::int64_t first_sequence_;
  std::int64_t seq_length_;
  std::int64_t late_;    // 1 without the extra token: a sample then begins where the one before it
                         // ends, which may be behind the last token of a sequence
  std::int64_t target_;  // the next sample begins in the first sequence that ends behind this token
  std::size_t position_ = 0;          // sequences read
  std::int64_t begin_ = 0, end_ = 0;  // tokens before and behind the last of them
  bool at_start_ = true;
};

// Sets for each sample the dataset that lacks most samples of its share, and that dataset's next
// sample. Where `limits` are given dataset i gives no more than limits[i] samples. `fused` computes
// the lack with one rounding, as a compiler does that contracts it to a fused multiply-add. Returns
// the number of samples, which is smaller than there is room for when all limits are reached.
std::size_t megatron_blend(std::span<const double> weights, std::span<const std::int64_t> limits,
                           bool fused, std::span<std::int16_t> datasets,
                           std::span<std::int64_t> samples);

}  // namespace tokpack

// Best-fit decreasing: pieces put together so that samples are nearly full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tokpack {

// A set of numbers that finds its smallest member not below a given number. It is a tree of 64-bit
// words: a bit says whether the word below it has any bit set.
class NumberSet {
 public:
  static constexpr std::int64_t kNone = -1;

  explicit NumberSet(std::size_t size);

  // The numbers must be below the size.
  void add(std::size_t number);
  void remove(std::size_t number);

  std::int64_t at_least(std::size_t number) const;  // kNone without one

 private:
  std::vector<std::vector<std::uint64_t>> levels_;
};

// An object is made once and used again and again, because of its memory, which is proportional to
// the capacity.
class BestFit {
 public:
  static constexpr std::int32_t kNone = -1;

  // Samples hold `capacity` tokens, below 2^31. A sample with room for fewer than `least` gets no
  // more pieces.
  BestFit(std::int64_t capacity, std::int64_t least);

  // Writes the sample of each piece, kNone for a length of 0, and returns the number of samples.
  // Pieces are placed from the longest on, equal ones in their order; each goes to the sample with
  // the least room that suffices, among equals to the one that got a piece last.
  // REQUIRES: at most 2^16 lengths, each from 0 to the capacity.
  std::size_t pack(std::span<const std::int32_t> lengths, std::span<std::int32_t> sample_of);

 private:
  std::int32_t put(std::int32_t length);
  void sort_longest_first(std::span<const std::int32_t> lengths);

  std::int32_t capacity_;
  std::int32_t least_;
  NumberSet rooms_;                   // the amounts of room that samples have left
  std::vector<std::int32_t> newest_;  // by room: the sample that got a piece last
  std::vector<std::int32_t> older_;   // by sample: the next one with the same room
  std::vector<std::int32_t> room_;    // by sample
  std::vector<std::uint16_t> sorted_, spare_;
};

}  // namespace tokpack

// A keyed permutation of [0, size) in constant memory. Integer arithmetic only: the same
// everywhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tokpack {

// A 64-bit hash of a sequence of 64-bit numbers, for keys. The length counts: (1) is not (1, 0).
std::uint64_t mix(std::span<const std::uint64_t> values);

// Feistel rounds on the least number of bits that holds size - 1: 6, or 24 below 12 bits, where few
// rounds of few bits favour some permutations. A result of size or more is fed back until it falls
// below (cycle walking), which keeps the map a bijection.
class Permutation {
 public:
  static constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 62;
  static constexpr std::size_t kBatch = 64;

  // Throws std::invalid_argument when size is above kMaxSize.
  Permutation(std::uint64_t size, std::uint64_t key);

  std::uint64_t size() const { return size_; }

  // The arguments must be below size().
  std::uint64_t at(std::uint64_t i) const;
  std::uint64_t inverse(std::uint64_t i) const;

  // values[k] = at(values[k]), faster than one by one. At most kBatch values.
  void batch(std::span<std::uint64_t> values) const;

 private:
  static constexpr std::size_t kMaxRounds = 24;

  std::uint64_t forward(std::uint64_t value) const;
  std::uint64_t backward(std::uint64_t value) const;

  std::uint64_t size_;
  unsigned low_bits_;   // of the half that even rounds change; one more than the other at most
  unsigned high_bits_;  // at most 31
  std::size_t rounds_ = 6;
  std::array<std::uint64_t, kMaxRounds> keys_;
};

}  // namespace tokpack

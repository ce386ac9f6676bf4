// A keyed permutation of [0, size) in constant memory. Integer arithmetic only: the same
// everywhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/cpu.hpp"

namespace tokpack {

// A 64-bit hash of a sequence of 64-bit numbers, for keys. Sequences of different lengths differ:
// (1) is not (1, 0).
std::uint64_t mix(std::span<const std::uint64_t> values);

// The multipliers of the hash in a round: those of MurmurHash3's finalizer.
inline constexpr std::uint64_t kHashFactors[] = {0xFF51AFD7ED558CCDu, 0xC4CEB9FE1A85EC53u};

// Feistel rounds on the least number of bits that holds size - 1: 6, or 24 below 12 bits, where few
// rounds of few bits favour some permutations. A result of size or more is fed back until it falls
// below (cycle walking), which keeps the map a bijection.
class Permutation {
 public:
  static constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 62;
  static constexpr std::size_t kBatch = 64;

  // Throws std::invalid_argument when size is above kMaxSize.
  Permutation(std::uint64_t size, std::uint64_t key, Level level = best_level());

  std::uint64_t size() const { return size_; }

  // The arguments must be below size().
  std::uint64_t at(std::uint64_t i) const;
  std::uint64_t inverse(std::uint64_t i) const;

  // values[k] = at(values[k]), faster than one by one. At most kBatch values.
  void batch(std::span<std::uint64_t> values) const;

 private:
  static constexpr std::size_t kMaxRounds = 24;

  using Batch = std::array<std::uint64_t, kBatch>;
  using ForwardMany = void (*)(const Permutation&, Batch&, std::size_t);

  static ForwardMany choose(Level level);
  static void forward_scalar(const Permutation& order, Batch& values, std::size_t count);
  static void forward_avx512(const Permutation& order, Batch& values, std::size_t count);
  std::uint64_t forward(std::uint64_t value) const;
  std::uint64_t backward(std::uint64_t value) const;

  std::uint64_t size_;
  ForwardMany forward_many_;
  unsigned low_bits_;   // of the half that even rounds change; one more than the other at most
  unsigned high_bits_;  // at most 31
  std::size_t rounds_ = 6;
  std::array<std::uint64_t, kMaxRounds> keys_;
};

}  // namespace tokpack

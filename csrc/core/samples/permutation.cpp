#include "core/samples/permutation.hpp"

#include <bit>
#include <stdexcept>
#include <string>

namespace tokpack {
namespace {

constexpr unsigned kFewBits = 12;
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio

// A bijection of 64-bit numbers in which every input bit reaches every output bit.
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The round function: `bits` bits of a keyed hash of one half.
std::uint64_t hash_half(std::uint64_t half, std::uint64_t key, unsigned bits) {
  std::uint64_t x = (half ^ key) * kHashFactors[0];
  x = (x ^ (x >> 32)) * kHashFactors[1];
  return (x >> 32) >> (32 - bits);
}

}  // namespace

std::uint64_t mix(std::span<const std::uint64_t> values) {
  std::uint64_t state = scramble(values.size() + kGolden);
  for (const std::uint64_t value : values) state = scramble((state ^ value) + kGolden);
  return state;
}

Permutation::Permutation(std::uint64_t size, std::uint64_t key, Level level)
    : size_(size), forward_many_(choose(level)) {
  if (size > kMaxSize) {
    throw std::invalid_argument("a permutation of " + std::to_string(size) +
                                " numbers; the limit is 2^62");
  }
  const auto bits = static_cast<unsigned>(std::bit_width(size > 0 ? size - 1 : 0));
  high_bits_ = bits / 2;
  low_bits_ = bits - high_bits_;
  if (bits < kFewBits) rounds_ = kMaxRounds;
  for (std::uint64_t& round_key : keys_) round_key = scramble(key += kGolden);
}

std::uint64_t Permutation::forward(std::uint64_t value) const {
  std::uint64_t high = value >> low_bits_;
  std::uint64_t low = value ^ (high << low_bits_);
  for (std::size_t r = 0; r < rounds_; r += 2) {
    low ^= hash_half(high, keys_[r], low_bits_);
    high ^= hash_half(low, keys_[r + 1], high_bits_);
  }
  return (high << low_bits_) | low;
}

std::uint64_t Permutation::backward(std::uint64_t value) const {
  std::uint64_t high = value >> low_bits_;
  std::uint64_t low = value ^ (high << low_bits_);
  for (std::size_t r = rounds_; r > 0; r -= 2) {
    high ^= hash_half(low, keys_[r - 1], high_bits_);
    low ^= hash_half(high, keys_[r - 2], low_bits_);
  }
  return (high << low_bits_) | low;
}

std::uint64_t Permutation::at(std::uint64_t i) const {
  do {
    i = forward(i);
  } while (i >= size_);
  return i;
}

std::uint64_t Permutation::inverse(std::uint64_t i) const {
  do {
    i = backward(i);
  } while (i >= size_);
  return i;
}

void Permutation::batch(std::span<std::uint64_t> values) const {
  Batch walkers{};
  std::array<std::uint8_t, kBatch> places;
  std::size_t count = values.size();
  for (std::size_t k = 0; k < count; ++k) {
    walkers[k] = values[k];
    places[k] = static_cast<std::uint8_t>(k);
  }
  while (count > 0) {
    forward_many_(*this, walkers, count);
    // The values that are not yet below size_ are gathered without a branch, which would be
    // mispredicted often.
    std::size_t left = 0;
    for (std::size_t w = 0; w < count; ++w) {
      const std::uint64_t value = walkers[w];
      values[places[w]] = value;
      walkers[left] = value;
      places[left] = places[w];
      left += value >= size_;
    }
    count = left;
  }
}

void Permutation::forward_scalar(const Permutation& order, Batch& values, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) values[k] = order.forward(values[k]);
}

Permutation::ForwardMany Permutation::choose([[maybe_unused]] Level level) {
#if defined(__x86_64__)
  if (level == Level::kAvx512) return &forward_avx512;
#endif
  return &forward_scalar;
}

}  // namespace tokpack

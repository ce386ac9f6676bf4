// The Mersenne Twister (Matsumoto and Nishimura, 1998), seeded and read as by numpy's RandomState.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tokpack {

class Mt19937 {
 public:
  static constexpr std::size_t kWords = 624;

  explicit Mt19937(std::uint32_t seed) {
    state_[0] = seed;
    for (std::size_t i = 1; i < kWords; ++i) {
      const std::uint32_t last = state_[i - 1];
      state_[i] = 1812433253U * (last ^ (last >> 30)) + static_cast<std::uint32_t>(i);
    }
  }

  std::uint32_t next32() {
    if (pos_ == kWords) refill();
    return words_[pos_++];
  }

  std::uint64_t next64() {
    const std::uint64_t high = next32();
    return high << 32 | next32();
  }

  const std::array<std::uint32_t, kWords>& state() const { return state_; }
  std::size_t position() const { return pos_; }  // words already taken of this state

 private:
  // All words at once, apart from handing them out, so that the compiler can use vectors.
  void refill() {
    constexpr std::size_t kMiddle = 397;
    for (std::size_t i = 0; i < kWords - kMiddle; ++i) {
      state_[i] = state_[i + kMiddle] ^ twist(state_[i], state_[i + 1]);
    }
    for (std::size_t i = kWords - kMiddle; i + 1 < kWords; ++i) {
      state_[i] = state_[i + kMiddle - kWords] ^ twist(state_[i], state_[i + 1]);
    }
    state_[kWords - 1] = state_[kMiddle - 1] ^ twist(state_[kWords - 1], state_[0]);
    for (std::size_t i = 0; i < kWords; ++i) words_[i] = temper(state_[i]);
    pos_ = 0;
  }

  static std::uint32_t twist(std::uint32_t high, std::uint32_t low) {
    const std::uint32_t mixed = (high & 0x80000000U) | (low & 0x7fffffffU);
    return (mixed >> 1) ^ ((0U - (low & 1U)) & 0x9908b0dfU);
  }

  static std::uint32_t temper(std::uint32_t word) {
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680U;
    word ^= (word << 15) & 0xefc60000U;
    return word ^ (word >> 18);
  }

  std::array<std::uint32_t, kWords> state_{};
  std::array<std::uint32_t, kWords> words_{};
  std::size_t pos_ = kWords;
};

}  // namespace tokpack

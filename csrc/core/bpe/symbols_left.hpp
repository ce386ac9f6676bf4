// Which symbols of a short word are left while its bytes are merged.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tokpack {

// Of a word of at most 32 bytes: bit i says that a symbol begins at byte i. Symbols do not move: a
// merge clears the bit of the right one.
class SymbolsLeft {
 public:
  static constexpr unsigned kNoNeighbour = 32;

  explicit SymbolsLeft(std::size_t bytes) : bits_((std::uint64_t{1} << bytes) - 1) {}

  std::uint64_t bits() const { return bits_; }
  std::size_t count() const { return static_cast<std::size_t>(std::popcount(bits_)); }

  struct Merged {
    std::uint64_t right;     // the bit that was cleared
    unsigned before, after;  // where the neighbours of the product begin, or kNoNeighbour
  };
  // Merges the symbol that begins at byte `at` with the next one. REQUIRES: there is a next one.
  __attribute__((always_inline)) Merged merge(unsigned at) {
    const std::uint64_t all_behind = bits_ & (~std::uint64_t{1} << at);
    const std::uint64_t right = all_behind & (~all_behind + 1);
    const std::uint64_t behind = all_behind ^ right;
    const std::uint64_t ahead = bits_ & ((std::uint64_t{1} << at) - 1);
    bits_ ^= right;
    const auto after =
        static_cast<unsigned>(std::countr_zero(behind | std::uint64_t{1} << kNoNeighbour));
    const unsigned before =
        ahead != 0 ? 63 - static_cast<unsigned>(std::countl_zero(ahead)) : kNoNeighbour;
    return {right, before, after};
  }

 private:
  std::uint64_t bits_;
};

}  // namespace tokpack

// How the texts of symbols begin and end.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tokpack {

struct Merge;

// The first and the last bytes of what a symbol stands for, four of each at most.
struct SymbolEnds {
  std::uint8_t size = 0;  // 0: not known; 4 stands for more, too
  std::array<std::uint8_t, 4> first{}, last{};

  friend bool operator==(const SymbolEnds&, const SymbolEnds&) = default;

  static SymbolEnds of(std::uint8_t byte) { return {1, {byte}, {0, 0, 0, byte}}; }
  static SymbolEnds of(const SymbolEnds& left, const SymbolEnds& right) {
    SymbolEnds both;
    both.size = static_cast<std::uint8_t>(std::min(left.size + right.size, 4));
    for (std::size_t i = 0; i < both.size; ++i) {
      both.first[i] = i < left.size ? left.first[i] : right.first[i - left.size];
      both.last[3 - i] = i < right.size ? right.last[3 - i] : left.last[3 - (i - right.size)];
    }
    return both;
  }
};

// The ends of each symbol, by id. Empty when a symbol stands for texts of different ends.
// byte_ids and merges as BpeModel takes them, with ids in range.
std::vector<SymbolEnds> symbol_ends(const std::array<std::uint32_t, 256>& byte_ids,
                                    std::span<const Merge> merges);

}  // namespace tokpack

// Merge rules of a vocabulary with 16-bit ids and ranks, laid out for the fast encoding of short
// words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/bpe/pair_table.hpp"

namespace tokpack {

struct Merge;

class MergeTable16 {
 public:
  static constexpr std::uint32_t kNone = 0xFFFF;  // no rank, and no id

  // What a pair merges to: the rank in the low half, the product in the high half.
  using Rule = std::uint32_t;

  // Nothing when an id or a rank does not fit.
  static std::optional<MergeTable16> make(const std::array<std::uint32_t, 256>& byte_ids,
                                          std::span<const Merge> merges);

  std::uint16_t byte_id(std::uint8_t byte) const { return byte_ids_[byte]; }

  Rule byte_pair(std::uint8_t left, std::uint8_t right) const {
    return byte_pairs_[std::size_t{left} << 8 | right];
  }

  Rule find(std::uint32_t left, std::uint32_t right) const {
    return static_cast<Rule>(rules_.find(left, right, kNone));
  }

 private:
  std::array<std::uint16_t, 256> byte_ids_{};
  std::vector<Rule> byte_pairs_;
  PairTable<16> rules_;
};

}  // namespace tokpack

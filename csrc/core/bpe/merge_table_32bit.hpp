// Merge rules of any vocabulary, laid out for the fast encoding of short words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/prefetch.hpp"
#include "core/bpe/pair_table.hpp"

namespace tokpack {

struct Merge;

class MergeTable32 {
 public:
  static constexpr std::uint32_t kNoSymbol = (1u << 21) - 1;  // an id that merges with nothing
  static constexpr std::uint32_t kNoRank = (1u << 22) - 1;

  MergeTable32() = default;

  // REQUIRES: ids below kNoSymbol, fewer merges than kNoRank.
  MergeTable32(const std::array<std::uint32_t, 256>& byte_ids, std::span<const Merge> merges);

  std::uint32_t byte_id(std::uint8_t byte) const { return byte_ids_[byte]; }

  // Ranks16 of two ids, and of two bytes.
  std::uint32_t rank(std::uint32_t left, std::uint32_t right) const {
    return static_cast<std::uint32_t>(ranks_.find(left, right, kNoRank));
  }
  std::uint32_t byte_pair(std::uint8_t left, std::uint8_t right) const {
    return byte_pairs_[std::size_t{left} << 8 | right];
  }

  std::uint32_t product(std::uint32_t rank) const { return products_[rank]; }
  // With or without such a rank.
  void prefetch_product(std::uint32_t rank) const { prefetch(products_.data() + rank); }

 private:
  std::array<std::uint32_t, 256> byte_ids_{};  // kNoSymbol where a byte has none
  std::vector<std::uint32_t> byte_pairs_;      // [first byte * 256 + second byte]
  std::vector<std::uint32_t> products_;        // by rank
  PairTable<21> ranks_;
};

}  // namespace tokpack

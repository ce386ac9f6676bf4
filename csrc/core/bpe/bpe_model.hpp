// Byte pair encoding of one pretoken: the merge rules and how to apply them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/huge_array.hpp"
#include "core/bpe/joinable_bytes.hpp"
#include "core/bpe/merge_table_16bit.hpp"

namespace tokpack {

// One merge rule: `left` followed by `right` becomes `product`. Its rank is its position.
struct Merge {
  std::uint32_t left;
  std::uint32_t right;
  std::uint32_t product;
};

// Immutable merge rules. Symbols are token ids; ids stay below 2^21.
class BpeModel {
 public:
  static constexpr std::uint32_t kIdLimit = 1u << 21;
  static constexpr std::uint32_t kNoToken = 0xFFFFFFFFu;

  // byte_ids: the id of each single byte, kNoToken for a byte that cannot occur in UTF-8.
  // whole_words: with ignore_merges, the pretokens that are a token without merging.
  // Throws std::invalid_argument when an id or the number of merges is out of range.
  BpeModel(const std::array<std::uint32_t, 256>& byte_ids, std::span<const Merge> merges,
           std::unordered_map<std::string, std::uint32_t> whole_words);

  // Writes the ids of one pretoken to `out`, which has room for `size` of them; returns how many.
  // Lowest rank first, leftmost among equals, as the merge order of Sennrich et al. (2016) asks.
  std::size_t encode(const std::uint8_t* text, std::size_t size, std::uint32_t* out) const;

  // Which bytes the rules can join. Nothing with whole words, whose tokens do not come from the
  // rules.
  const std::optional<JoinableBytes>& joinable_bytes() const { return joinable_bytes_; }

  // The rules laid out for short words, if they fit. Never with whole words.
  const std::optional<MergeTable16>& merge_table16() const { return merge_table16_; }

 private:
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFFu;
  static constexpr std::size_t kShort = 32;

  std::uint32_t rank(std::uint32_t left, std::uint32_t right) const;
  std::size_t encode_short(const std::uint8_t* text, std::size_t size, std::uint32_t* out) const;
  std::size_t encode_long(const std::uint8_t* text, std::size_t size, std::uint32_t* out) const;

  std::array<std::uint32_t, 256> byte_ids_;
  std::vector<std::uint32_t> byte_pair_ranks_;  // [first byte * 256 + second byte]
  std::vector<std::uint32_t> products_;         // by rank
  HugeArray<std::uint64_t> pairs_;              // left 21 bits, right 21 bits, rank + 1 in 22 bits
  std::uint64_t pair_mask_ = 0;
  std::unordered_map<std::string, std::uint32_t> whole_words_;
  std::optional<MergeTable16> merge_table16_;
  std::optional<JoinableBytes> joinable_bytes_;
};

}  // namespace tokpack

// Merge rules of a vocabulary with 16-bit ids and ranks, laid out for the fast encoding of short
// words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

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

  // Looks at both buckets without a branch, which would be mispredicted: a pair is as often absent
  // as present.
  Rule find(std::uint32_t left, std::uint32_t right) const {
    const std::uint32_t key = left << 16 | right;
    const std::uint64_t h = key * multiplier_;
    const Bucket& a = buckets_[h >> shift_];
    const Bucket& b = buckets_[(h >> 20) & mask_];
    Rule rule = kNone;
    rule = a[0] >> 32 == key ? static_cast<Rule>(a[0]) : rule;
    rule = a[1] >> 32 == key ? static_cast<Rule>(a[1]) : rule;
    rule = b[0] >> 32 == key ? static_cast<Rule>(b[0]) : rule;
    rule = b[1] >> 32 == key ? static_cast<Rule>(b[1]) : rule;
    return rule;
  }

 private:
  using Bucket =
      std::array<std::uint64_t, 2>;  // the pair in the high half, its rule in the low one
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  bool place(std::uint64_t slot);

  std::array<std::uint16_t, 256> byte_ids_{};
  std::vector<Rule> byte_pairs_;
  std::vector<Bucket> buckets_;
  std::uint64_t multiplier_ = 0x9E3779B97F4A7C15ull;
  std::uint64_t mask_ = 0;
  unsigned shift_ = 0;
};

}  // namespace tokpack

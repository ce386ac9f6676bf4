// A hash table from pairs of ids to numbers, made once, for lookups without branches.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/base/huge_array.hpp"
#include "core/base/prefetch.hpp"

namespace tokpack {

// Cuckoo hashing: a pair is in one of two buckets of two slots. A slot is 64 bits: both ids of
// kIdBits, and the value.
template <unsigned kIdBits>
class PairTable {
 public:
  static constexpr unsigned kValueBits = 64 - 2 * kIdBits;
  static constexpr std::uint64_t kValueMask = (std::uint64_t{1} << kValueBits) - 1;

  struct Entry {
    std::uint32_t left, right;
    std::uint64_t value;
  };

  PairTable() = default;

  // Of entries with the same pair the last one counts. REQUIRES: ids fit kIdBits, values
  // kValueBits, and no entry has all bits set.
  explicit PairTable(std::span<const Entry> entries) {
    std::size_t buckets = std::max<std::size_t>(16, std::bit_ceil(entries.size() * 4 / 7));
    for (unsigned tries = 1; !place_all(entries, buckets); ++tries) {
      multiplier_ = (multiplier_ * 6364136223846793005ull + 1442695040888963407ull) | 1;
      if (tries % 8 == 0) buckets *= 2;
    }
  }

  // The value of a pair, or `absent`. Looks at both buckets without a branch, which would be
  // mispredicted: a pair is as often absent as present.
  std::uint64_t find(std::uint32_t left, std::uint32_t right, std::uint64_t absent) const {
    const std::uint64_t key = key_of(left, right);
    const auto [first, second] = homes(key);
    const Bucket& a = buckets_[first];
    const Bucket& b = buckets_[second];
    std::uint64_t value = absent;
    value = a.slots[0] >> kValueBits == key ? a.slots[0] & kValueMask : value;
    value = a.slots[1] >> kValueBits == key ? a.slots[1] & kValueMask : value;
    value = b.slots[0] >> kValueBits == key ? b.slots[0] & kValueMask : value;
    value = b.slots[1] >> kValueBits == key ? b.slots[1] & kValueMask : value;
    return value;
  }

 private:
  struct Bucket {
    std::uint64_t slots[2];
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  static std::uint64_t key_of(std::uint32_t left, std::uint32_t right) {
    return std::uint64_t{left} << kIdBits | right;
  }

  std::pair<std::uint64_t, std::uint64_t> homes(std::uint64_t key) const {
    const std::uint64_t h = key * multiplier_;
    return {h >> shift_, (h >> 20) & mask_};
  }

  bool place_all(std::span<const Entry> entries, std::size_t buckets) {
    buckets_ = HugeArray<Bucket>(buckets);
    for (std::size_t i = 0; i < buckets; ++i) buckets_[i] = {kFree, kFree};
    mask_ = buckets - 1;
    shift_ = 64 - static_cast<unsigned>(std::countr_zero(buckets));
    return std::all_of(entries.begin(), entries.end(), [&](const Entry& entry) {
      return place(key_of(entry.left, entry.right), entry.value);
    });
  }

  // When both buckets of a pair are full it takes an occupied place, and the pair from there moves
  // to its other bucket. Which place is random: fixed choices run in circles.
  bool place(std::uint64_t key, std::uint64_t value) {
    const auto [first, second] = homes(key);
    for (const std::uint64_t home : {first, second}) {
      for (std::uint64_t& slot : buckets_[home].slots) {
        if (slot != kFree && slot >> kValueBits == key) {
          slot = key << kValueBits | value;
          return true;
        }
      }
    }
    std::uint64_t moving = key << kValueBits | value;
    std::uint64_t random = moving;
    for (unsigned round = 0; round < 1000; ++round) {
      const auto [one, other] = homes(moving >> kValueBits);
      for (const std::uint64_t home : {one, other}) {
        for (std::uint64_t& slot : buckets_[home].slots) {
          if (slot == kFree) {
            slot = moving;
            return true;
          }
        }
      }
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      std::swap(moving, buckets_[random >> 63 ? one : other].slots[random >> 62 & 1]);
    }
    return false;
  }

  HugeArray<Bucket> buckets_;
  std::uint64_t multiplier_ = 0x9E3779B97F4A7C15ull;
  std::uint64_t mask_ = 0;
  unsigned shift_ = 0;
};

}  // namespace tokpack

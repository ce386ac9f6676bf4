// A hash table from pairs of symbols, of any ids, to what they become: made once.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/huge_array.hpp"
#include "core/bpe/bpe_model.hpp"

namespace tokpack {

inline constexpr std::uint32_t kNoProduct = 0xFFFFFFFFu;

// What two symbols become, and when: the lower the rank the earlier. Both are kNoProduct where they
// do not merge.
struct Product {
  std::uint32_t id = kNoProduct;
  std::uint32_t rank = kNoProduct;
};

class ProductTable {
 public:
  struct Entry {
    std::uint32_t left, right;
    Product product;
  };

  ProductTable() = default;

  // Of entries with the same pair the first one counts. REQUIRES: ids below kNoProduct.
  explicit ProductTable(std::span<const Entry> entries)
      : entries_(std::bit_ceil(entries.size() * 2 + 16)), mask_(entries_.size() - 1) {
    for (const Entry& entry : entries) {
      std::uint64_t at = home(entry.left, entry.right);
      while (entries_[at].product.id != 0) at = (at + 1) & mask_;
      entries_[at] = entry;
      ++entries_[at].product.id;
    }
  }

  // Of merges by rank, each pair once.
  explicit ProductTable(std::span<const Merge> merges)
      : ProductTable(std::span<const Entry>(entries_of(merges))) {}

  Product find(std::uint32_t left, std::uint32_t right) const {
    for (std::uint64_t at = home(left, right);; at = (at + 1) & mask_) {
      const Entry& entry = entries_[at];
      if (entry.product.id == 0) return {};
      if (entry.left == left && entry.right == right) {
        return {entry.product.id - 1, entry.product.rank};
      }
    }
  }

 private:
  static std::vector<Entry> entries_of(std::span<const Merge> merges) {
    std::vector<Entry> entries;
    for (std::uint32_t rank = 0; rank < merges.size(); ++rank) {
      entries.push_back({merges[rank].left, merges[rank].right, {merges[rank].product, rank}});
    }
    return entries;
  }

  std::uint64_t home(std::uint32_t left, std::uint32_t right) const {
    return ((std::uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15ull) >> 32 & mask_;
  }

  HugeArray<Entry> entries_;  // their ids are one more here, 0 for a free entry
  std::uint64_t mask_ = 0;
};

}  // namespace tokpack

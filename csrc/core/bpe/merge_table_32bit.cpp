#include "core/bpe/merge_table_32bit.hpp"

#include "core/bpe/bpe_model.hpp"

namespace tokpack {

MergeTable32::MergeTable32(const std::array<std::uint32_t, 256>& byte_ids,
                           std::span<const Merge> merges)
    : byte_pairs_(std::size_t{256} * 256, kNoRank), products_(merges.size()) {
  std::vector<PairTable<21>::Entry> entries;
  entries.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    products_[rank] = merges[rank].product;
    entries.push_back({merges[rank].left, merges[rank].right, rank});
  }
  ranks_ = PairTable<21>(entries);
  for (std::size_t b = 0; b < 256; ++b) {
    byte_ids_[b] = byte_ids[b] == BpeModel::kNoToken ? kNoSymbol : byte_ids[b];
  }
  for (std::size_t a = 0; a < 256; ++a) {
    for (std::size_t b = 0; b < 256; ++b)
      byte_pairs_[a << 8 | b] = rank(byte_ids_[a], byte_ids_[b]);
  }
}

}  // namespace tokpack

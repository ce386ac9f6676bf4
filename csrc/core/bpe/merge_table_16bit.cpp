#include "core/bpe/merge_table_16bit.hpp"

#include <algorithm>

#include "core/bpe/bpe_model.hpp"

namespace tokpack {

std::optional<MergeTable16> MergeTable16::make(const std::array<std::uint32_t, 256>& byte_ids,
                                               std::span<const Merge> merges) {
  if (merges.size() >= kNone) return std::nullopt;
  MergeTable16 table;
  for (std::size_t b = 0; b < 256; ++b) {
    if (byte_ids[b] != BpeModel::kNoToken && byte_ids[b] >= kNone) return std::nullopt;
    table.byte_ids_[b] = static_cast<std::uint16_t>(std::min(byte_ids[b], kNone));
  }
  std::vector<PairTable<16>::Entry> rules;
  rules.reserve(merges.size());
  for (std::uint32_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    if (std::max({merge.left, merge.right, merge.product}) >= kNone) return std::nullopt;
    rules.push_back({merge.left, merge.right, merge.product << 16 | rank});
  }
  table.rules_ = PairTable<16>(rules);
  table.byte_pairs_.assign(std::size_t{256} * 256, kNone);
  for (std::size_t a = 0; a < 256; ++a) {
    for (std::size_t b = 0; b < 256; ++b) {
      if (table.byte_ids_[a] == kNone || table.byte_ids_[b] == kNone) continue;
      table.byte_pairs_[a << 8 | b] = table.find(table.byte_ids_[a], table.byte_ids_[b]);
    }
  }
  return table;
}

}  // namespace tokpack

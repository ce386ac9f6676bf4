#include "core/bpe/symbol_ends.hpp"

#include "core/bpe/bpe_model.hpp"

namespace tokpack {

std::vector<SymbolEnds> symbol_ends(const std::array<std::uint32_t, 256>& byte_ids,
                                    std::span<const Merge> merges) {
  std::uint32_t top = 0;
  for (const std::uint32_t id : byte_ids) top = id == BpeModel::kNoToken ? top : std::max(top, id);
  for (const Merge& merge : merges) top = std::max({top, merge.left, merge.right, merge.product});
  std::vector<SymbolEnds> ends(std::size_t{top} + 1);
  bool changed = false;
  const auto learn = [&](std::uint32_t id, const SymbolEnds& value) {
    if (ends[id].size != 0) return ends[id] == value;
    ends[id] = value;
    return changed = true;
  };
  for (std::size_t b = 0; b < 256; ++b) {
    const auto byte = static_cast<std::uint8_t>(b);
    if (byte_ids[b] != BpeModel::kNoToken && !learn(byte_ids[b], SymbolEnds::of(byte))) return {};
  }
  do {  // again, because a merge may come before those that make its symbols
    changed = false;
    for (const Merge& merge : merges) {
      const SymbolEnds &left = ends[merge.left], &right = ends[merge.right];
      if (left.size == 0 || right.size == 0) continue;
      if (!learn(merge.product, SymbolEnds::of(left, right))) return {};
    }
  } while (changed);
  return ends;
}

}  // namespace tokpack

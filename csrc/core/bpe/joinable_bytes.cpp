#include "core/bpe/joinable_bytes.hpp"

#include <algorithm>
#include <vector>

#include "core/bpe/bpe_model.hpp"

namespace tokpack {
namespace {

// The first and the last byte of what a symbol stands for.
struct Ends {
  bool known = false;
  std::uint8_t first = 0, last = 0;

  friend bool operator==(const Ends&, const Ends&) = default;
};

// The ends of each symbol, by id. Empty when a symbol stands for texts of different ends.
std::vector<Ends> ends_of(const std::array<std::uint32_t, 256>& byte_ids,
                          std::span<const Merge> merges) {
  std::uint32_t top = 0;
  for (const std::uint32_t id : byte_ids) top = id == BpeModel::kNoToken ? top : std::max(top, id);
  for (const Merge& merge : merges) top = std::max({top, merge.left, merge.right, merge.product});
  std::vector<Ends> ends(std::size_t{top} + 1);
  bool changed = false;
  const auto learn = [&](std::uint32_t id, Ends value) {
    if (ends[id].known) return ends[id] == value;
    ends[id] = value;
    return changed = true;
  };
  for (std::size_t b = 0; b < 256; ++b) {
    const auto byte = static_cast<std::uint8_t>(b);
    if (byte_ids[b] != BpeModel::kNoToken && !learn(byte_ids[b], {true, byte, byte})) return {};
  }
  do {  // again, because a merge may come before those that make its symbols
    changed = false;
    for (const Merge& merge : merges) {
      const Ends left = ends[merge.left], right = ends[merge.right];
      if (!left.known || !right.known) continue;
      if (!learn(merge.product, {true, left.first, right.last})) return {};
    }
  } while (changed);
  return ends;
}

}  // namespace

JoinableBytes::JoinableBytes(const std::array<std::uint32_t, 256>& byte_ids,
                             std::span<const Merge> merges) {
  const std::vector<Ends> ends = ends_of(byte_ids, merges);
  if (ends.empty()) {
    bits_.fill(~std::uint64_t{0});
    return;
  }
  for (const Merge& merge : merges) {
    const Ends left = ends[merge.left], right = ends[merge.right];
    if (!left.known || !right.known) continue;  // no text gives this symbol
    bits_[left.last << 2 | right.first >> 6] |= std::uint64_t{1} << (right.first & 63);
  }
}

}  // namespace tokpack

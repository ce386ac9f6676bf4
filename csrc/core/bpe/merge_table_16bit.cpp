#include "core/bpe/merge_table_16bit.hpp"

#include <algorithm>
#include <bit>
#include <utility>

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
  std::vector<std::pair<std::uint32_t, Rule>> rules;
  for (std::uint32_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    if (std::max({merge.left, merge.right, merge.product}) >= kNone) return std::nullopt;
    rules.emplace_back(merge.left << 16 | merge.right, merge.product << 16 | rank);
  }
  // A pair that is given twice keeps its last rank.
  std::stable_sort(rules.begin(), rules.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto kept = std::unique(rules.rbegin(), rules.rend(),
                                [](const auto& a, const auto& b) { return a.first == b.first; });
  rules.erase(rules.begin(), kept.base());
  const std::size_t buckets = std::max<std::size_t>(16, std::bit_ceil(rules.size() * 4 / 7));
  table.mask_ = buckets - 1;
  table.shift_ = 64 - static_cast<unsigned>(std::countr_zero(buckets));
  const auto place_all = [&] {
    table.buckets_.assign(buckets, {kFree, kFree});
    return std::all_of(rules.begin(), rules.end(), [&](const auto& pair_rule) {
      return table.place(std::uint64_t{pair_rule.first} << 32 | pair_rule.second);
    });
  };
  for (int tries = 0; !place_all(); ++tries) {
    if (tries == 10) return std::nullopt;
    table.multiplier_ = (table.multiplier_ * 6364136223846793005ull + 1442695040888963407ull) | 1;
  }
  table.byte_pairs_.assign(std::size_t{256} * 256, kNone);
  for (std::size_t a = 0; a < 256; ++a) {
    for (std::size_t b = 0; b < 256; ++b) {
      if (table.byte_ids_[a] == kNone || table.byte_ids_[b] == kNone) continue;
      table.byte_pairs_[a << 8 | b] = table.find(table.byte_ids_[a], table.byte_ids_[b]);
    }
  }
  return table;
}

// Cuckoo hashing: when both buckets of a pair are full it takes an occupied place, and the entry
// from there moves to its other bucket. Which place is random: fixed choices run in circles.
bool MergeTable16::place(std::uint64_t slot) {
  std::uint64_t random = slot;
  for (unsigned round = 0; round < 1000; ++round) {
    const std::uint64_t h = (slot >> 32) * multiplier_;
    const std::array<std::uint64_t, 2> homes{h >> shift_, (h >> 20) & mask_};
    for (const std::uint64_t home : homes) {
      for (std::uint64_t& candidate : buckets_[home]) {
        if (candidate == kFree) {
          candidate = slot;
          return true;
        }
      }
    }
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(slot, buckets_[homes[random >> 63]][random >> 62 & 1]);
  }
  return false;
}

}  // namespace tokpack

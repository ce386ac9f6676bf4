#include "core/bpe/joinable_characters.hpp"

#include <algorithm>
#include <vector>

#include "core/bpe/bpe_model.hpp"

namespace tokpack {
namespace {

std::uint32_t packed(const std::uint8_t* bytes, std::size_t size) {
  std::uint32_t all = 0;
  for (std::size_t i = size; i-- > 0;) all = all << 8 | bytes[i];
  return all;
}

// The first and the last bytes of what a symbol stands for, four of each at most.
struct Ends {
  std::uint8_t size = 0;  // 0: not known; 4 stands for more, too
  std::array<std::uint8_t, 4> first{}, last{};

  friend bool operator==(const Ends&, const Ends&) = default;

  static Ends of(std::uint8_t byte) { return {1, {byte}, {0, 0, 0, byte}}; }
  static Ends of(const Ends& left, const Ends& right) {
    Ends both;
    both.size = static_cast<std::uint8_t>(std::min(left.size + right.size, 4));
    for (std::size_t i = 0; i < both.size; ++i) {
      both.first[i] = i < left.size ? left.first[i] : right.first[i - left.size];
      both.last[3 - i] = i < right.size ? right.last[3 - i] : left.last[3 - (i - right.size)];
    }
    return both;
  }
};

// The ends of each symbol, by id. Empty when a symbol stands for texts of different ends.
std::vector<Ends> ends_of(const std::array<std::uint32_t, 256>& byte_ids,
                          std::span<const Merge> merges) {
  std::uint32_t top = 0;
  for (const std::uint32_t id : byte_ids) top = id == BpeModel::kNoToken ? top : std::max(top, id);
  for (const Merge& merge : merges) top = std::max({top, merge.left, merge.right, merge.product});
  std::vector<Ends> ends(std::size_t{top} + 1);
  bool changed = false;
  const auto learn = [&](std::uint32_t id, const Ends& value) {
    if (ends[id].size != 0) return ends[id] == value;
    ends[id] = value;
    return changed = true;
  };
  for (std::size_t b = 0; b < 256; ++b) {
    const auto byte = static_cast<std::uint8_t>(b);
    if (byte_ids[b] != BpeModel::kNoToken && !learn(byte_ids[b], Ends::of(byte))) return {};
  }
  do {  // again, because a merge may come before those that make its symbols
    changed = false;
    for (const Merge& merge : merges) {
      const Ends &left = ends[merge.left], &right = ends[merge.right];
      if (left.size == 0 || right.size == 0) continue;
      if (!learn(merge.product, Ends::of(left, right))) return {};
    }
  } while (changed);
  return ends;
}

}  // namespace

JoinableCharacters::JoinableCharacters(const std::array<std::uint32_t, 256>& byte_ids,
                                       std::span<const Merge> merges)
    : bytes_(of_bytes(0xFF, 0xFF) + 1), pairs_((std::size_t{1} << kPairBits) / 64) {
  const std::vector<Ends> ends = ends_of(byte_ids, merges);
  if (ends.empty()) {
    std::fill(bytes_.begin(), bytes_.end(), std::uint8_t{kAny | kPart});
    return;
  }
  for (const Merge& merge : merges) {
    const Ends &left = ends[merge.left], &right = ends[merge.right];
    if (left.size == 0 || right.size == 0) continue;  // no text gives this symbol
    if (right.first[0] < 0xC0) continue;              // nothing is cut there
    std::uint8_t& bytes = bytes_[of_bytes(left.last[3], right.first[0])];
    bytes |= kAny;
    // The last character of the left symbol, if all of it is there.
    std::size_t left_size = 1;
    while (left_size < left.size && (left.last[4 - left_size] & 0xC0) == 0x80) ++left_size;
    const std::uint8_t lead = left.last[4 - left_size];
    const std::size_t right_size = size_of(right.first[0]);
    if ((lead & 0xC0) != 0x80 && size_of(lead) == left_size && right_size <= right.size) {
      const std::size_t bit = pair_bit(packed(&left.last[4 - left_size], left_size),
                                       packed(right.first.data(), right_size));
      pairs_[bit / 64] |= std::uint64_t{1} << bit % 64;
    } else {
      bytes |= kPart;
    }
  }
}

}  // namespace tokpack

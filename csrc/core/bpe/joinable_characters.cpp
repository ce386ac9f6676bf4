#include "core/bpe/joinable_characters.hpp"

#include <algorithm>

#include "core/bpe/bpe_model.hpp"

namespace tokpack {
namespace {

std::uint32_t packed(const std::uint8_t* bytes, std::size_t size) {
  std::uint32_t all = 0;
  for (std::size_t i = size; i-- > 0;) all = all << 8 | bytes[i];
  return all;
}

}  // namespace

JoinableCharacters::JoinableCharacters(std::span<const Merge> merges,
                                       std::span<const SymbolEnds> ends)
    : bytes_(of_bytes(0xFF, 0xFF) + 1), pairs_((std::size_t{1} << kPairBits) / 64) {
  if (ends.empty()) {
    std::fill(bytes_.begin(), bytes_.end(), std::uint8_t{kAny | kPart});
    return;
  }
  for (const Merge& merge : merges) {
    const SymbolEnds &left = ends[merge.left], &right = ends[merge.right];
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

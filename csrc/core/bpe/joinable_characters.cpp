#include "core/bpe/joinable_characters.hpp"

#include <algorithm>

#include "core/bpe/bpe_model.hpp"

namespace tokpack {
namespace {

std::uint32_t packed(std::string_view bytes) {
  std::uint32_t all = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    all = all << 8 | static_cast<std::uint8_t>(bytes[i]);
  }
  return all;
}

std::string_view view(const std::uint8_t* bytes, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

JoinableCharacters::JoinableCharacters(std::span<const Merge> merges,
                                       std::span<const SymbolEnds> ends)
    : JoinableCharacters(std::span<const std::string>()) {
  if (ends.empty()) {
    std::fill(bytes_.begin(), bytes_.end(), std::uint8_t{kAny | kPart});
    return;
  }
  for (const Merge& merge : merges) {
    const SymbolEnds &left = ends[merge.left], &right = ends[merge.right];
    if (left.size == 0 || right.size == 0) continue;  // no text gives this symbol
    join(view(&left.last[4 - left.size], left.size), view(right.first.data(), right.size));
  }
}

JoinableCharacters::JoinableCharacters(std::span<const std::string> pieces)
    : bytes_(of_bytes(0xFF, 0xFF) + 1), pairs_((std::size_t{1} << kPairBits) / 64) {
  for (const std::string_view piece : pieces) {
    for (std::size_t i = 1; i < piece.size(); ++i) join(piece.substr(0, i), piece.substr(i));
  }
}

void JoinableCharacters::join(std::string_view left, std::string_view right) {
  const auto lead_of = [](std::string_view text) { return static_cast<std::uint8_t>(text[0]); };
  if (lead_of(right) < 0xC0) return;  // nothing is cut there
  std::uint8_t& bytes = bytes_[of_bytes(static_cast<std::uint8_t>(left.back()), lead_of(right))];
  bytes |= kAny;
  // The last character of the left text, if all of it is there.
  std::size_t left_size = 1;
  while (left_size < std::min<std::size_t>(left.size(), 4) &&
         (left[left.size() - left_size] & 0xC0) == 0x80) {
    ++left_size;
  }
  const std::string_view last = left.substr(left.size() - left_size);
  const std::size_t right_size = size_of(lead_of(right));
  if ((lead_of(last) & 0xC0) != 0x80 && size_of(lead_of(last)) == left_size &&
      right_size <= right.size()) {
    const std::size_t bit = pair_bit(packed(last), packed(right.substr(0, right_size)));
    pairs_[bit / 64] |= std::uint64_t{1} << bit % 64;
  } else {
    bytes |= kPart;
  }
}

}  // namespace tokpack

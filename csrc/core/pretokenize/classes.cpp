#include "core/pretokenize/classes.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

namespace tokpack {
namespace {

// The character that stands for a byte: itself where Latin-1 has a printable one, else the next one
// from U+0100 on.
std::uint32_t character_of(unsigned byte) {
  const auto is_printable = [](unsigned b) {
    return (b >= 0x21 && b < 0x7F) || (b >= 0xA1 && b != 0xAD);
  };
  if (is_printable(byte)) return byte;
  std::uint32_t next = 0x100;
  for (unsigned b = 0; b < byte; ++b) next += !is_printable(b);
  return next;
}

}  // namespace

Classes::Classes(std::span<const CodePoints> sets, bool on_bytes) : on_bytes_(on_bytes) {
  make_runs(sets);
  make_blocks();
  make_bytes();
}

void Classes::make_runs(std::span<const CodePoints> sets) {
  std::map<std::uint32_t, std::vector<std::size_t>> turns;  // where sets begin or end
  turns[0];
  for (std::size_t which = 0; which < sets.size(); ++which) {
    for (const CodePoints::Range& range : sets[which].ranges()) {
      turns[range.first].push_back(which);
      if (range.last + 1 < CodePoints::kLimit) turns[range.last + 1].push_back(which);
    }
  }
  std::map<std::vector<bool>, std::uint8_t> known;
  std::vector<bool> inside(sets.size());
  for (const auto& [first, which] : turns) {
    for (const std::size_t set : which) inside[set] = !inside[set];
    const auto [found, is_new] =
        known.try_emplace(inside, static_cast<std::uint8_t>(members_.size()));
    if (is_new) members_.push_back(inside);
    if (members_.size() > kMost) throw std::invalid_argument("too many sets of characters");
    if (runs_.empty() || runs_.back().of_class != found->second) {
      runs_.push_back({first, found->second});
    }
  }
}

// Each block of the code points' classes once.
void Classes::make_blocks() {
  constexpr std::size_t kBlock = std::size_t{1} << kBlockBits;
  std::vector<std::uint8_t> all(CodePoints::kLimit);
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const std::size_t end = i + 1 < runs_.size() ? runs_[i + 1].first : CodePoints::kLimit;
    std::fill(all.begin() + runs_[i].first, all.begin() + static_cast<std::ptrdiff_t>(end),
              runs_[i].of_class);
  }
  std::unordered_map<std::string_view, std::uint16_t> known;
  for (std::size_t begin = 0; begin < all.size(); begin += kBlock) {
    const std::string_view block(reinterpret_cast<const char*>(all.data()) + begin, kBlock);
    const auto [found, is_new] =
        known.try_emplace(block, static_cast<std::uint16_t>(blocks_.size() / kBlock));
    if (is_new) blocks_.insert(blocks_.end(), block.begin(), block.end());
    index_[begin / kBlock] = found->second;
  }
}

void Classes::make_bytes() {
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes_[byte] = of(on_bytes_ ? character_of(byte) : byte);
  }
}

}  // namespace tokpack

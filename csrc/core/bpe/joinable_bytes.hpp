// Which pairs of neighbouring bytes some merge can join. Between two bytes that no merge joins a
// word can be cut, and its pieces encoded independently.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tokpack {

struct Merge;

class JoinableBytes {
 public:
  // byte_ids and merges as BpeModel takes them, with ids in range.
  JoinableBytes(const std::array<std::uint32_t, 256>& byte_ids, std::span<const Merge> merges);

  // Whether some merge joins a symbol that ends in `left` to one that begins with `right`.
  bool operator()(std::uint8_t left, std::uint8_t right) const {
    return (bits_[left << 2 | right >> 6] >> (right & 63) & 1) != 0;
  }

  // Cuts text[begin, end) where a character beyond ASCII begins that nothing before it is joined
  // to. Writes where the pieces begin, and `end` behind them, so `starts` has room for one more
  // than there are bytes. Returns the number of pieces; 0 when one is longer than `longest`.
  std::size_t cut(const std::uint8_t* text, std::uint32_t begin, std::uint32_t end,
                  std::uint32_t longest, std::uint32_t* starts) const {
    std::size_t count = 1;
    starts[0] = begin;
    for (std::uint32_t i = begin + 1; i < end; ++i) {
      starts[count] = i;
      count += text[i] >= 0xC0 && !(*this)(text[i - 1], text[i]) ? 1 : 0;
    }
    starts[count] = end;
    for (std::size_t i = 0; i < count; ++i) {
      if (starts[i + 1] - starts[i] > longest) return 0;
    }
    return count;
  }

 private:
  std::array<std::uint64_t, 1024> bits_{};
};

}  // namespace tokpack

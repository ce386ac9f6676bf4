// Where a normalized text can be cut so that its parts become ids independently of each other.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/sentencepiece/model_file.hpp"

namespace tokpack {

// Between two characters that stand side by side in no piece, no piece and no merge reaches across.
// A pair is told by the last byte of one character and the first byte of the next one.
class PieceCutter {
 public:
  PieceCutter() = default;
  explicit PieceCutter(const PieceModelFile& model);

  // Writes where the words of text[*at, size) begin, at most `room` of them, and moves *at behind
  // them, to the begin of the next one or to the end. Returns their number.
  // REQUIRES: *at < size.
  std::size_t cut(const std::uint8_t* text, std::size_t size, std::size_t* at, std::size_t room,
                  std::uint32_t* starts) const {
    std::size_t count = 1, i = *at + 1;
    starts[0] = static_cast<std::uint32_t>(*at);
    while (i < size && count < room) {
      // No more than this many cuts can be made before there is no room.
      const std::size_t end = std::min(size, i + (room - count));
      for (; i < end; ++i) {
        starts[count] = static_cast<std::uint32_t>(i);
        count += is_cut(text[i - 1], text[i]) ? 1 : 0;
      }
    }
    while (i < size && !is_cut(text[i - 1], text[i])) ++i;
    *at = i;
    return count;
  }

 private:
  bool is_cut(std::uint8_t left, std::uint8_t right) const {
    return (bits_[left << 2 | right >> 6] >> (right & 63) & 1) != 0;
  }
  void join(std::uint8_t left, std::uint8_t right) {
    bits_[left << 2 | right >> 6] &= ~(std::uint64_t{1} << (right & 63));
  }

  std::array<std::uint64_t, 1024> bits_{};
};

}  // namespace tokpack

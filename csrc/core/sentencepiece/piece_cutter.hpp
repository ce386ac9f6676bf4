// Where a normalized text can be cut so that its parts become ids independently of each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/sentencepiece/byte_pairs.hpp"
#include "core/sentencepiece/model_file.hpp"

namespace tokpack {

// A text is cut between two characters that are neighbours in no piece: no piece and no merge
// reaches across. What is compared is the last byte of one character and the first byte of the next
// one.
class PieceCutter {
 public:
  explicit PieceCutter(const PieceModelFile& model);
  // Folded pieces. `at_spaces`: each space begins a word, whatever the pieces are.
  PieceCutter(std::span<const std::string> pieces, bool at_spaces);

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
        count += cuts_(text + i - 1);
      }
    }
    while (i < size && cuts_(text + i - 1) == 0) ++i;
    *at = i;
    return count;
  }

 private:
  PieceCutter();  // cuts between all characters
  void join(std::uint8_t left, std::uint8_t right) { cuts_.set(left, right, false); }

  BytePairs cuts_{true};
};

}  // namespace tokpack

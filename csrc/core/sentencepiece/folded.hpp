// Folded texts: a space stands for U+2581, with which SentencePiece marks white space.
#pragma once

#include <string>
#include <string_view>

#include "core/sentencepiece/model_file.hpp"

namespace tokpack {

inline constexpr std::string_view kLowerBlock = "\xE2\x96\x81";  // U+2581

// Replaces every U+2581 by a space.
inline std::string folded(std::string_view text) {
  std::string result;
  for (std::size_t at = 0;;) {
    const std::size_t next = text.find(kLowerBlock, at);
    result += text.substr(at, next - at);
    if (next == std::string_view::npos) return result;
    result += ' ';
    at = next + kLowerBlock.size();
  }
}

// Whether some text can become this piece: a normalized text has no space.
inline bool is_usable(const Piece& piece) {
  return (piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined) &&
         piece.text.find(' ') == std::string::npos;
}

}  // namespace tokpack

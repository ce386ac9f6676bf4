#include "core/sentencepiece/piece_cutter.hpp"

#include <string_view>

#include "core/sentencepiece/folded.hpp"

namespace tokpack {

PieceCutter::PieceCutter() {
  for (unsigned left = 0; left < 256; ++left) {
    for (unsigned right = 0x80; right < 0xC0; ++right) {  // inside of a character
      join(static_cast<std::uint8_t>(left), static_cast<std::uint8_t>(right));
    }
  }
}

PieceCutter::PieceCutter(std::span<const std::string> pieces, bool at_spaces) : PieceCutter() {
  for (const std::string& piece : pieces) {
    const auto* text = reinterpret_cast<const std::uint8_t*>(piece.data());
    for (std::size_t i = 1; i < piece.size(); ++i) join(text[i - 1], text[i]);
  }
  for (unsigned left = 0; at_spaces && left < 256; ++left) {
    cuts_.set(static_cast<std::uint8_t>(left), ' ', true);
  }
}

PieceCutter::PieceCutter(const PieceModelFile& model) : PieceCutter() {
  for (const Piece& piece : model.pieces) {
    if (!is_usable(piece)) continue;
    const auto* text = reinterpret_cast<const std::uint8_t*>(piece.text.data());
    const std::string_view view = piece.text;
    for (std::size_t i = 1; i < view.size(); ++i) {
      if ((text[i] & 0xC0) == 0x80) continue;
      // In a folded text a lower block may also be a space.
      const bool left = view.substr(0, i).ends_with(kLowerBlock);
      const bool right = view.substr(i).starts_with(kLowerBlock);
      join(text[i - 1], text[i]);
      if (left) join(' ', text[i]);
      if (right) join(text[i - 1], ' ');
      if (left && right) join(' ', ' ');
    }
  }
}

}  // namespace tokpack

#include "core/sentencepiece/piece_cutter.hpp"

#include <algorithm>
#include <vector>

#include "core/pretokenize/scan.hpp"
#include "core/sentencepiece/folded.hpp"

namespace tokpack {
namespace {

// In a folded text a lower block may also be a space, one of two next to each other, too.
std::vector<std::string> texts_of(const PieceModelFile& model) {
  std::vector<std::string> texts;
  const std::string two = std::string(kLowerBlock) + std::string(kLowerBlock);
  bool any_two = false;
  for (const Piece& piece : model.pieces) {
    if (!is_usable(piece)) continue;
    texts.push_back(piece.text);
    texts.push_back(folded(piece.text));
    any_two |= piece.text.find(two) != std::string::npos;
  }
  if (any_two) texts.push_back(" " + std::string(kLowerBlock) + " ");
  return texts;
}

}  // namespace

PieceCutter::PieceCutter(std::span<const std::string> pieces, bool is_unigram, bool at_spaces,
                         Level level)
    : kernel_(bpe_kernel(level)) {
  if (is_unigram) joinable_.emplace(pieces);
  for (unsigned left = 0; left < 256; ++left) {
    for (unsigned right = 0x80; right < 0xC0; ++right) {  // inside of a character
      cuts_.set(static_cast<std::uint8_t>(left), static_cast<std::uint8_t>(right), false);
    }
  }
  for (const std::string& piece : pieces) {
    const auto* text = reinterpret_cast<const std::uint8_t*>(piece.data());
    for (std::size_t i = 1; i < piece.size(); ++i) cuts_.set(text[i - 1], text[i], false);
  }
  for (unsigned left = 0; at_spaces && left < 256; ++left) {
    cuts_.set(static_cast<std::uint8_t>(left), ' ', true);
  }
}

PieceCutter::PieceCutter(const PieceModelFile& model, Level level)
    : PieceCutter(texts_of(model), model.type != PieceModelType::kBpe, false, level) {}

std::span<const std::uint32_t> PieceCutter::next(const std::uint8_t* text, std::size_t size,
                                                 std::size_t* at) {
  const std::size_t begin = *at;
  const std::size_t count = cut(text, size, at, kWindow, starts_);
  starts_[count] = static_cast<std::uint32_t>(*at);
  if (!joinable_) return {starts_, count + 1};
  std::uint16_t longs[kMaxWindow];
  const std::size_t found = kernel_.find_long(starts_, count, longs);
  // Cutting a word writes as far as its number of bytes behind its first part.
  parts_.reserve(count + 2 + (*at - begin));
  std::uint32_t* parts = parts_.data();
  std::size_t from = 0;  // words copied to `parts`
  for (const std::size_t word : std::span(longs, found)) {
    if (text[starts_[word + 1] - 1] < 0x80) continue;  // as good as always all of it is ASCII
    std::uint32_t* own = parts + (word - from);
    const std::size_t cuts = joinable_->cut(text, starts_[word], starts_[word + 1], own);
    if (cuts == 1) continue;
    std::copy(starts_ + from, starts_ + word, parts);
    parts = own + cuts;
    from = word + 1;
  }
  if (from == 0) return {starts_, count + 1};
  parts = std::copy(starts_ + from, starts_ + count + 1, parts);
  return {parts_.data(), static_cast<std::size_t>(parts - parts_.data())};
}

std::size_t PieceCutter::cut(const std::uint8_t* text, std::size_t size, std::size_t* at,
                             std::size_t room, std::uint32_t* starts) const {
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

}  // namespace tokpack

// SentencePiece's normalization, before a text is cut into pieces.
//
// The result is folded, see folded.hpp. A U+2581 of the text itself stays as it is, and means the
// same as a space.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/buffer.hpp"
#include "core/bpe/added_tokens.hpp"
#include "core/sentencepiece/byte_pairs.hpp"
#include "core/sentencepiece/character_map.hpp"
#include "core/sentencepiece/folded.hpp"
#include "core/sentencepiece/model_file.hpp"

namespace tokpack {

class PieceNormalizer {
 public:
  // Throws std::invalid_argument for rules that are broken.
  explicit PieceNormalizer(const PieceModelFile& model);

  // Appends the folded normal form of a text to `out`.
  void append(const std::uint8_t* text, std::size_t size, Buffer<std::uint8_t>* out) const;

 private:
  // The next part of a text that is replaced, or kept, as a whole.
  struct Step {
    std::size_t size;
    std::string_view result;
  };
  Step step(const std::uint8_t* text, std::size_t size) const;
  std::size_t kept(const std::uint8_t* text, std::size_t size) const;

  bool dummy_prefix_, remove_extra_;
  CharacterMap map_;
  AddedTokenMatcher user_defined_;
  std::size_t longest_user_defined_ = 0;
  std::array<bool, 256> begins_{};  // by first byte, whether a symbol begins with it
  // Pairs of bytes of which the first is not changed, whatever comes behind the second.
  BytePairs plain_{false};
};

}  // namespace tokpack

// Documents to the ids of a SentencePiece model: normalization, words, pieces.
#pragma once

#include <cstddef>
#include <memory>

#include "core/base/cpu.hpp"
#include "core/bpe/bpe_encoder.hpp"
#include "core/sentencepiece/model_file.hpp"

namespace tokpack {

// Control symbols inside documents are text, and reported as special tokens. `wide`: ids are int32,
// not uint16. `cache_bytes` are those of the word cache.
// REQUIRES: model.why_not_native() is empty.
// Throws std::invalid_argument when an id does not fit, or rules of the model are broken.
std::unique_ptr<BpeEncoder> make_piece_encoder(const PieceModelFile& model, bool wide,
                                               std::size_t cache_bytes, Level level);

}  // namespace tokpack

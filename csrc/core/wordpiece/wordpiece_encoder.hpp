// Documents to the ids of a WordPiece, as BERT's: normalized, cut into words, and each word into
// the longest pieces from its begin on; or of a BPE over the characters of words, or a Unigram.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/cpu.hpp"
#include "core/bpe/added_tokens.hpp"
#include "core/bpe/bpe_encoder.hpp"
#include "core/pretokenize/pretokenize.hpp"
#include "core/sentencepiece/piece_unigram.hpp"
#include "core/sentencepiece/text_normalizer.hpp"
#include "core/wordpiece/word_bpe.hpp"

namespace tokpack {

struct WordPieceModel {
  std::vector<std::string> tokens;  // by id; empty where no text becomes one
  std::string prefix;               // of a token that goes on a word
  std::uint32_t unknown = 0;        // the id of a word that is not made of tokens,
  std::size_t longest_word = 100;   // or has more characters
  std::vector<NormalizerStep> steps;
  std::vector<std::string> cuts;  // as WordCutter takes them; or else
  std::optional<Pretokenizer> pretokenizer;
  // Instead of pieces: words are merged; or are cut by scores, and of these all tokens are folded.
  std::optional<WordBpeSettings> bpe;
  std::optional<UnigramScores> scores;
  std::vector<AddedToken> added;
  bool encode_specials = true;  // special tokens inside documents become ids, not text
};

// `vocab_size` is above all ids. `wide`: ids are int32, not uint16. `cache_bytes` are those of the
// word cache. Throws std::invalid_argument when an id does not fit, or something is not understood.
std::unique_ptr<BpeEncoder> make_wordpiece_encoder(WordPieceModel model, std::size_t vocab_size,
                                                   bool wide, std::size_t cache_bytes, Level level);

}  // namespace tokpack

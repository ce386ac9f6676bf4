// Unigram of one word: the pieces with the best sum of scores.
//
// SentencePiece adds scores up as floats from the begin of a document on; the Hugging Face library
// as doubles from the begin of a word of its own, which may have several of ours. So where two ways
// to cut a word have nearly equal sums, rounding decides, and depends on the text before. encode()
// says for which words this may be so; encode_after() takes the sum before the word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/sentencepiece/model_file.hpp"
#include "core/sentencepiece/piece_trie.hpp"

namespace tokpack {

// The scores of the Unigram of a tokenizer.json.
struct UnigramScores {
  std::vector<double> by_id;  // as many as tokens
  std::uint32_t unknown = 0;
  std::vector<std::uint32_t> byte_ids;  // of the 256 bytes; none without byte fallback
};

// Immutable but for its scratch memory: for one thread at a time.
class PieceUnigram {
 public:
  // A sum beyond this is set back to 0 by SentencePiece, together with all that is compared to it.
  static constexpr float kReset = 100000.0f;

  // These throw std::invalid_argument when the pieces take too much memory.
  explicit PieceUnigram(const PieceModelFile& model);
  // The Hugging Face library's: a run of unknown characters is the token of this text, if there is
  // one, else its bytes or one unknown token. `tokens` are folded, by id, empty where no text
  // becomes one.
  PieceUnigram(std::span<const std::string> tokens, const UnigramScores& scores);

  // Appends the ids of a folded word to *ids: what PieceCutter leaves together. False, and nothing
  // is appended, when they may depend on the sum of scores before the word; while no sum within the
  // word reaches kReset, they do not otherwise.
  // REQUIRES: as PieceBpe::encode().
  bool encode(std::string_view word, std::vector<std::uint32_t>* ids);

  // The same after text with this sum of scores, to which the word's is added. A sum of floats is
  // set back as SentencePiece does it.
  void encode_after(std::string_view word, float* sum, std::vector<std::uint32_t>* ids);
  void encode_after(std::string_view word, double* sum, std::vector<std::uint32_t>* ids);

  // What an id adds to the sum. Only of a model file.
  float score(std::uint32_t id) const { return scores_[id]; }
  // The largest absolute value of what a piece or an unknown character adds. Only of a model file.
  float largest() const { return largest_; }

 private:
  static constexpr std::uint32_t kNone = PieceTrie::kNone;

  // The best way to get to the end of a character.
  template <class Sum>
  struct Node {
    Sum sum;
    Sum second;           // the sum of the second best way; not told where it is not asked for
    std::uint32_t piece;  // its node in the trie; kNone for an unknown character
    std::uint32_t begin;  // of the last piece; kNone while there is no way
  };

  template <bool kSecond, class Sum>
  void find_best(std::string_view word, Sum sum, std::vector<Node<Sum>>* nodes) const;
  template <class Sum>
  void write(std::string_view word, const std::vector<Node<Sum>>& nodes,
             std::vector<std::uint32_t>* ids);
  void write_unknown(std::string_view text, std::vector<std::uint32_t>* ids) const;
  std::uint32_t id_of(std::uint32_t piece) const {
    return piece == kNone ? unknown_ : trie_.id(piece);
  }

  PieceTrie trie_;
  std::uint32_t unknown_;
  double unknown_score_ = 0;
  double least_distance_;  // a character, between two ways that rounding does not confuse
  float largest_ = 0;
  bool fuses_ = false;
  std::vector<std::uint32_t> byte_ids_;  // empty without byte fallback
  std::vector<float> scores_;            // by id; none of a tokenizer.json
  std::vector<Node<float>> nodes_;
  std::vector<Node<double>> exact_nodes_;
  std::vector<std::uint32_t> path_;
};

}  // namespace tokpack

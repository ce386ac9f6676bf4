// SentencePiece's Unigram of one word: the pieces with the best sum of scores.
//
// The library adds scores up as floats from the begin of a document on, so where two ways to cut a
// word are nearly equal, what is before the word decides, by rounding. Such words are told apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/huge_array.hpp"
#include "core/sentencepiece/model_file.hpp"

namespace tokpack {

// Immutable but for its scratch memory: for one thread at a time.
class PieceUnigram {
 public:
  // A sum beyond this is set back to 0 by the library, together with all that is compared to it.
  static constexpr float kReset = 100000.0f;

  // Throws std::invalid_argument when its pieces take too much memory.
  explicit PieceUnigram(const PieceModelFile& model);

  // Appends the ids of a folded word to *ids: what PieceCutter leaves together. False, and nothing
  // is appended, when they may depend on the sum of scores before the word; while no sum within the
  // word reaches kReset, they do not otherwise.
  // REQUIRES: as PieceBpe::encode().
  bool encode(std::string_view word, std::vector<std::uint32_t>* ids);

  // The same after text with this sum of scores, to which the word's is added.
  void encode_after(std::string_view word, float* sum, std::vector<std::uint32_t>* ids);

  // What an id adds to the sum.
  float score(std::uint32_t id) const { return scores_[id]; }
  // The largest that a character adds, whatever its sign.
  float largest() const { return largest_; }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  // The best way to get to the end of a character.
  template <class Sum>
  struct Node {
    Sum sum;
    Sum second;  // the sum of the second best way; only told for a Sum of double
    std::uint32_t id;
    std::uint32_t begin;  // of the last piece; kNone while there is no way
  };

  void add(std::string_view text, std::uint32_t id);
  std::uint32_t child(std::uint32_t node, std::uint8_t byte) const;
  template <class Sum>
  void find_best(std::string_view word, Sum sum, std::vector<Node<Sum>>* nodes) const;
  template <class Sum>
  void write(std::string_view word, const std::vector<Node<Sum>>& nodes,
             std::vector<std::uint32_t>* ids);

  std::uint32_t unknown_;
  float unknown_score_;
  float largest_ = 0;
  std::vector<std::uint32_t> byte_ids_;  // empty without byte fallback
  std::vector<float> scores_;            // by id
  std::vector<std::uint32_t> pieces_;    // by node of the trie: the piece that ends there, or kNone
  HugeArray<std::uint64_t> children_;    // node 28 bits, byte 8 bits, child 28 bits; the root is 0
  std::uint64_t mask_ = 0;
  std::array<std::uint32_t, 256> first_{};  // children of the root; 0: none
  std::vector<Node<float>> nodes_;
  std::vector<Node<double>> exact_nodes_;
  std::vector<std::uint32_t> path_;
};

}  // namespace tokpack

// BPE of one word over characters: SentencePiece's, by the scores of pieces, and that of a
// tokenizer.json, by the ranks of merges.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/bpe/added_tokens.hpp"
#include "core/bpe/bpe_model.hpp"
#include "core/bpe/product_table.hpp"
#include "core/sentencepiece/model_file.hpp"

namespace tokpack {

// Immutable but for its scratch memory: for one thread at a time. A symbol is a piece, by its id,
// or a character that is only a part of pieces.
class PieceBpe {
 public:
  // SentencePiece's: the pair whose product has the best score merges first.
  explicit PieceBpe(const PieceModelFile& model);
  // A tokenizer.json's: the pair of the first merge merges first. `tokens` are folded, by id, empty
  // where no text becomes one; `byte_ids` are 256, or none without byte fallback.
  PieceBpe(std::span<const std::string> tokens, std::span<const Merge> merges,
           std::vector<std::uint32_t> byte_ids, std::uint32_t unknown);

  // Appends the ids of a folded word to *ids: what PieceCutter leaves together. With byte fallback
  // unknown characters are bytes, else each is the unknown id.
  // REQUIRES: the text is valid UTF-8 (anything else gives meaningless ids, no harm), and shorter
  // than 2^31 bytes.
  void encode(std::string_view word, std::vector<std::uint32_t>* ids);

 private:
  static constexpr std::uint32_t kNone = kNoProduct;
  static constexpr std::size_t kShort = 32;  // bytes

  struct Symbol {
    std::uint32_t id;  // kNone: unknown
    std::uint32_t begin;
    std::uint32_t size;  // of its text in bytes; 0 when merged
    std::uint32_t previous, next;
  };

  void learn_merges(const PieceModelFile& model);
  void set_character(std::string_view text, std::uint32_t symbol);
  std::uint32_t character(std::string_view text) const;
  void encode_part(std::string_view part, std::vector<std::uint32_t>* ids);
  void encode_short(std::string_view part, std::vector<std::uint32_t>* ids) const;
  void encode_long(std::string_view part, std::vector<std::uint32_t>* ids);
  void write(std::uint32_t symbol, std::string_view text, std::vector<std::uint32_t>* ids) const;

  std::uint32_t unknown_;
  std::vector<std::uint32_t> byte_ids_;  // empty without byte fallback
  std::size_t pieces_ = 0;               // symbols below this number are ids
  AddedTokenMatcher user_defined_;
  std::array<std::uint32_t, 128> ascii_{};                       // symbols
  std::unordered_map<std::uint32_t, std::uint32_t> characters_;  // by code point
  ProductTable products_;                                        // equal scores have equal ranks
  std::vector<Symbol> symbols_;
};

}  // namespace tokpack

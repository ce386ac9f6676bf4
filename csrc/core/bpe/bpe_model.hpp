// Byte pair encoding of one pretoken: the merge rules and how to apply them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bpe/first_symbols.hpp"
#include "core/bpe/joinable_characters.hpp"
#include "core/bpe/merge_table_16bit.hpp"
#include "core/bpe/merge_table_32bit.hpp"
#include "core/bpe/whole_words.hpp"

namespace tokpack {

// One merge rule: `left` followed by `right` becomes `product`. Its rank is its position.
struct Merge {
  std::uint32_t left;
  std::uint32_t right;
  std::uint32_t product;
};

// Immutable merge rules. Symbols are token ids.
class BpeModel {
 public:
  static constexpr std::uint32_t kIdLimit = MergeTable32::kNoSymbol;  // all ids are below
  static constexpr std::uint32_t kNoToken = 0xFFFFFFFFu;

  // byte_ids: the id of each single byte, kNoToken for a byte that cannot occur in UTF-8.
  // whole_words: with ignore_merges, the pretokens that are a token without merging.
  // Throws std::invalid_argument when an id or the number of merges is out of range.
  BpeModel(const std::array<std::uint32_t, 256>& byte_ids, std::span<const Merge> merges,
           WholeWords whole_words);

  // Merges: writes the ids of one pretoken that is no whole word to `out`, which has room for
  // `size` of them; returns how many. Lowest rank first, leftmost among equals, as the merge order
  // of Sennrich et al. (2016) asks.
  std::size_t encode(const std::uint8_t* text, std::size_t size, std::uint32_t* out) const;

  // With ignore_merges: the words that are a token without merging; otherwise none.
  const WholeWords& whole_words() const { return whole_words_; }

  // How many bytes become each id; none where some id is made of two numbers of bytes.
  const std::vector<std::uint32_t>& sizes() const { return sizes_; }

  // Which characters the rules can join.
  const JoinableCharacters& joinable() const { return joinable_; }

  // The rules laid out for short words; nothing where ids or ranks do not fit 16 bits.
  const std::optional<MergeTable16>& merge_table16() const { return merge_table16_; }
  const MergeTable32& merge_table32() const { return merges_; }
  const FirstSymbols& first_symbols() const { return first_symbols_; }

 private:
  static constexpr std::uint32_t kNoRank = MergeTable32::kNoRank;
  static constexpr std::size_t kShort = 32;

  BpeModel(const std::array<std::uint32_t, 256>& byte_ids, std::span<const Merge> merges,
           WholeWords whole_words, std::span<const SymbolEnds> ends);

  std::size_t encode_short(const std::uint8_t* text, std::size_t size, std::uint32_t* out) const;
  std::size_t encode_long(const std::uint8_t* text, std::size_t size, std::uint32_t* out) const;

  MergeTable32 merges_;
  std::optional<MergeTable16> merge_table16_;
  JoinableCharacters joinable_;
  FirstSymbols first_symbols_;
  WholeWords whole_words_;
  std::vector<std::uint32_t> sizes_;
};

}  // namespace tokpack

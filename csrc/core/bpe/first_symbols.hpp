// With which symbols the merging of a word may begin: whole characters, where bytes would come to
// the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/bpe/merge_table_32bit.hpp"
#include "core/bpe/symbol_ends.hpp"

namespace tokpack {

// A character of two or three bytes whose merges all have lower ranks than any rule that joins a
// part of it, or all of it, to what is beside it: then nothing is joined to it before it is whole.
// The rules that count are those for symbols that end, or begin, with the byte beside it.
class FirstSymbols {
 public:
  static constexpr std::size_t kMost = 32;

  // Of fewer characters the search for them takes longer than their merges (cl100k has 1,200, o200k
  // 5,100).
  static constexpr std::size_t kWorthwhile = 3000;

  // ends: as symbol_ends() gives them. Finds none where there would be fewer than `least`.
  FirstSymbols(const MergeTable32& table, std::span<const Merge> merges,
               std::span<const SymbolEnds> ends, std::size_t least = kWorthwhile);

  bool empty() const { return characters_.empty(); }

  // Writes the symbols of a word and returns how many; 0 where they are more than kMost.
  // REQUIRES: not empty().
  std::size_t write(const MergeTable32& table, const std::uint8_t* text, std::size_t size,
                    std::uint32_t* symbols) const {
    std::size_t count = 0;
    for (std::size_t at = 0; at < size; ++count) {
      if (count == kMost) return 0;
      const std::size_t whole = character_size(text[at]);
      symbols[count] = table.byte_id(text[at]);
      if (whole == 1 || at + whole > size) {
        ++at;
        continue;
      }
      const Character& character = characters_[code_point(text + at, whole)];
      const bool fits = character.id != MergeTable32::kNoSymbol &&
                        (at == 0 || allows(character.before, text[at - 1])) &&
                        (at + whole == size || allows(character.after, text[at + whole]));
      if (fits) symbols[count] = character.id;
      at += fits ? whole : 1;
    }
    return count;
  }

 private:
  struct Character {
    std::uint32_t id = MergeTable32::kNoSymbol;  // where it is not one
    std::uint16_t before = 0, after = 0;  // numbers of sets: of the bytes that may be beside it
  };
  using Bytes = std::array<std::uint64_t, 4>;  // a bit for each

  // Of what begins with a byte, if it may be such a character, else 1.
  static std::size_t character_size(std::uint8_t lead) {
    return lead < 0xC2 || lead >= 0xF0 ? 1 : lead < 0xE0 ? 2 : 3;
  }
  // 0 where the bytes are no character.
  static std::uint32_t code_point(const std::uint8_t* text, std::size_t size) {
    if ((text[1] & 0xC0) != 0x80) return 0;
    if (size == 2) return (text[0] & 0x1Fu) << 6 | (text[1] & 0x3Fu);
    const std::uint32_t c = (text[0] & 0xFu) << 12 | (text[1] & 0x3Fu) << 6 | (text[2] & 0x3Fu);
    return (text[2] & 0xC0) == 0x80 && c >= 0x800 ? c : 0;
  }
  bool allows(std::uint16_t set, std::uint8_t byte) const {
    return sets_[set][byte >> 6] >> (byte & 63) & 1;
  }

  std::vector<Character> characters_;  // by code point below 0x10000; or none
  std::vector<Bytes> sets_;
};

}  // namespace tokpack

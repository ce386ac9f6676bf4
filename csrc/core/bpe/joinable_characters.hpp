// Which neighbouring characters some merge joins, or some piece has. Between others a word can be
// cut, and its parts encoded independently.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/load.hpp"
#include "core/bpe/symbol_ends.hpp"

namespace tokpack {

class JoinableCharacters {
 public:
  // ends: as symbol_ends() gives them.
  JoinableCharacters(std::span<const Merge> merges, std::span<const SymbolEnds> ends);
  // For words that become pieces of a vocabulary.
  explicit JoinableCharacters(std::span<const std::string> pieces);

  // Cuts text[begin, end) before each character beyond ASCII that nothing joins to the one before
  // it. Writes where the pieces begin, and `end` behind them, so that `starts` needs room for one
  // more than there are bytes. Returns the number of pieces. There is no branch that depends on a
  // single character, as it would be mispredicted. REQUIRES: begin < end, valid UTF-8 (anything
  // else is cut anywhere), and kBlock readable bytes behind the text.
  std::size_t cut(const std::uint8_t* text, std::uint32_t begin, std::uint32_t end,
                  std::uint32_t* starts) const {
    std::size_t count = 1;
    starts[0] = begin;
    std::uint32_t left = character_at(text + begin);
    for (std::uint32_t from = begin; from < end; from += kBlock) {
      std::uint64_t firsts = 0, high = 0;  // bit i: byte i begins a character, is beyond ASCII
      for (unsigned i = 0; i < kBlock; i += 8) {
        const auto bytes = load<std::uint64_t>(text + from + i);
        firsts |= top_bits(~bytes | bytes << 1) << i;
        high |= bytes;
      }
      if ((high & kTopBits) == 0) {
        left = text[from + kBlock - 1];
        continue;
      }
      if (from == begin) firsts &= ~std::uint64_t{1};
      if (end - from < kBlock) firsts &= (std::uint64_t{1} << (end - from)) - 1;
      for (; firsts != 0; firsts &= firsts - 1) {
        const std::uint32_t at = from + static_cast<std::uint32_t>(std::countr_zero(firsts));
        const std::uint32_t right = character_at(text + at);
        starts[count] = at;
        count += (right & 0xFF) >= 0xC0 && !joins(text[at - 1], left, right);
        left = right;
      }
    }
    starts[count] = end;
    return count;
  }

  static constexpr std::uint32_t kBlock = 32;

 private:
  static constexpr unsigned kPairBits = 19;
  static constexpr std::uint64_t kTopBits = 0x8080808080808080;

  // For the last byte of one character and the first of the next, which merges join them.
  enum : std::uint8_t {
    kAny = 1,   // some merge does
    kPart = 2,  // one of them joins only a part of one of the characters
  };

  // The first bit of each of eight bytes.
  static std::uint64_t top_bits(std::uint64_t bytes) {
    return ((bytes & kTopBits) >> 7) * 0x0102040810204080 >> 56;
  }

  static constexpr std::size_t size_of(std::uint8_t lead) {
    return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  }
  // The bytes of the character that begins there, the first one lowest. Reads four.
  static std::uint32_t character_at(const std::uint8_t* text) {
    static constexpr std::array<std::uint32_t, 16> kMasks = [] {
      std::array<std::uint32_t, 16> masks{};
      for (unsigned i = 0; i < 16; ++i) {
        masks[i] = 0xFFFFFFFF >> (32 - 8 * size_of(static_cast<std::uint8_t>(i << 4)));
      }
      return masks;
    }();
    return load<std::uint32_t>(text) & kMasks[text[0] >> 4];
  }

  static std::size_t pair_bit(std::uint32_t left, std::uint32_t right) {
    const std::uint64_t both = std::uint64_t{left} << 32 | right;
    return (both ^ both >> 29) * 0x9E3779B97F4A7C15ull >> (64 - kPairBits);
  }
  static std::size_t of_bytes(std::uint8_t last, std::uint32_t lead) {
    return std::size_t{last} << 6 | (lead & 0x3F);
  }

  // Joins the last character of a text to the first one of another.
  void join(std::string_view left, std::string_view right);

  // Whether some merge may join the left character, which ends with the byte last, to the right
  // one, which is beyond ASCII.
  bool joins(std::uint8_t last, std::uint32_t left, std::uint32_t right) const {
    const unsigned bytes = bytes_[of_bytes(last, right)];
    const std::size_t bit = pair_bit(left, right);
    const auto pair = static_cast<unsigned>(pairs_[bit / 64] >> bit % 64);
    return (bytes & (bytes >> 1 | pair) & 1) != 0;
  }

  std::vector<std::uint8_t> bytes_;  // by of_bytes()
  std::vector<std::uint64_t>
      pairs_;  // a bit by pair_bit(): some merge joins these whole characters
};

}  // namespace tokpack

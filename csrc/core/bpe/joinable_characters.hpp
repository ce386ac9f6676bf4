// Which neighbouring characters some merge can join. Where no merge joins two characters a word can
// be cut, and its pieces encoded independently.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tokpack {

struct Merge;

class JoinableCharacters {
 public:
  // byte_ids and merges as BpeModel takes them, with ids in range.
  JoinableCharacters(const std::array<std::uint32_t, 256>& byte_ids, std::span<const Merge> merges);

  // Cuts text[begin, end) where a character beyond ASCII begins that nothing before it is joined
  // to. Writes where the pieces begin, and `end` behind them, so `starts` has room for one more
  // than there are bytes. Returns the number of pieces.
  std::size_t cut(const std::uint8_t* text, std::uint32_t begin, std::uint32_t end,
                  std::uint32_t* starts) const {
    std::size_t count = 1;
    starts[0] = begin;
    std::uint32_t last = begin;  // where the character before begins
    for (std::uint32_t i = begin + 1; i < end; ++i) {
      if ((text[i] & 0xC0) == 0x80) continue;
      if (text[i] >= 0xC0 && !joins(text + last, i - last, text + i, end - i)) starts[count++] = i;
      last = i;
    }
    starts[count] = end;
    return count;
  }

 private:
  static constexpr unsigned kPairBits = 19;

  // Of two bytes.
  struct ByteTable {
    std::array<std::uint64_t, 1024> bits{};

    void set(std::uint8_t left, std::uint8_t right) {
      bits[left << 2 | right >> 6] |= std::uint64_t{1} << (right & 63);
    }
    bool operator()(std::uint8_t left, std::uint8_t right) const {
      return (bits[left << 2 | right >> 6] >> (right & 63) & 1) != 0;
    }
  };

  static std::uint32_t packed(const std::uint8_t* bytes, std::size_t size) {
    std::uint32_t all = 0;
    for (std::size_t i = 0; i < size; ++i) all = all << 8 | bytes[i];
    return all;
  }
  static std::size_t pair_bit(std::uint32_t left, std::uint32_t right) {
    const std::uint64_t both = std::uint64_t{left} << 32 | right;
    return (both ^ both >> 29) * 0x9E3779B97F4A7C15ull >> (64 - kPairBits);
  }
  static std::size_t size_of(std::uint8_t lead) {
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  }

  // Whether some merge may join the character left[0, left_size) to the one that begins at right,
  // where `rest` bytes are left of the word.
  bool joins(const std::uint8_t* left, std::size_t left_size, const std::uint8_t* right,
             std::size_t rest) const {
    if (!bytes_(left[left_size - 1], right[0])) return false;
    const std::size_t right_size = size_of(right[0]);
    if (parts_(left[left_size - 1], right[0]) || left_size > 4 || right_size > rest) return true;
    const std::size_t bit = pair_bit(packed(left, left_size), packed(right, right_size));
    return (pairs_[bit / 64] >> bit % 64 & 1) != 0;
  }

  ByteTable bytes_;  // the last byte before, and the first behind, any merge
  ByteTable parts_;  // the same of merges of which a side has but a part of its character
  std::vector<std::uint64_t> pairs_;  // of all others: the two characters, hashed
};

}  // namespace tokpack

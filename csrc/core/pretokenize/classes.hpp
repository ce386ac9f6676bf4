// Classes of characters that no set of an expression tells apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/text/code_points.hpp"

namespace tokpack {

class Classes {
 public:
  static constexpr std::size_t kMost = 250;

  // on_bytes: a text's characters are its bytes, each standing for the character that GPT-2's
  // alphabet has for it. Throws std::invalid_argument when there are more than kMost classes.
  Classes(std::span<const CodePoints> sets, bool on_bytes);

  std::size_t count() const { return members_.size(); }
  bool on_bytes() const { return on_bytes_; }

  // Whether the characters of a class are in sets[which].
  bool is_in(std::size_t of_class, std::size_t which) const { return members_[of_class][which]; }

  // REQUIRES: below 0x80 unless characters are bytes.
  std::uint8_t of_byte(std::uint8_t byte) const { return bytes_[byte]; }
  std::uint8_t of(std::uint32_t code_point) const {
    const std::size_t block = index_[code_point >> kBlockBits];
    return blocks_[(block << kBlockBits) + (code_point & ((1u << kBlockBits) - 1))];
  }

  // Where the code points of another class begin, ascending from 0.
  struct Run {
    std::uint32_t first;
    std::uint8_t of_class;
  };
  const std::vector<Run>& runs() const { return runs_; }

 private:
  static constexpr unsigned kBlockBits = 7;

  void make_runs(std::span<const CodePoints> sets);
  void make_blocks();
  void make_bytes();

  bool on_bytes_;
  std::vector<std::vector<bool>> members_;  // by class, then by set
  std::vector<Run> runs_;
  std::array<std::uint16_t, (CodePoints::kLimit >> kBlockBits)> index_;
  std::vector<std::uint8_t> blocks_;
  std::array<std::uint8_t, 256> bytes_;
};

}  // namespace tokpack

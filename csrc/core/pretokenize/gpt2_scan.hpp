// GPT-2's split pattern, 64 bytes at a time, once for each instruction set that has such a scanner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/cpu.hpp"
#include "core/pretokenize/pretokenize.hpp"

namespace tokpack {

inline constexpr std::size_t kWindow = 256;  // pretokens that a scan finds before it returns
inline constexpr std::size_t kMaxWindow =
    kWindow + 128;  // room for the block in which it gets there

// Where a scan of one text stands between two calls.
struct Gpt2Scan {
  const std::uint8_t* text;
  std::size_t size;
  // Runs of 2 to this many spaces are tokens of their own, longest first (GPT-NeoX's added tokens);
  // 0 without such tokens.
  std::size_t longest_run;

  // Masks of 64 bytes: bit i is byte `begin` + i. Bytes after the end of the text count as space.
  struct Block {
    std::uint64_t letter = 0, number = 0, space = 0, blank = 0, apostrophe = 0;
    std::uint64_t high = 0, lead = 0;  // bytes above 0x7F, and above 0xBF
    // First bytes of whitespace characters of 2 and 3 bytes.
    std::uint64_t two_byte_space = 0, three_byte_space = 0;
  };
  std::size_t begin = 0;  // of `current`, the block that is classified but not yet cut
  bool started = false;
  Block current;
  // Of the last byte of the block before: its class, in bit 0.
  std::uint64_t letter = 0, number = 0, other = 0, space = 0, blank = 0, spaces = 0, any_blank = 0;
  // Starts that a contraction in the block before adds to `current` and removes from it.
  std::uint64_t set = 0, clear = 0;
  std::size_t run = 0;  // length of the run of spaces before `current`
  // Bytes of a character that reach into the block to classify next.
  std::uint64_t spill_letter = 0, spill_number = 0, spill_space = 0;
};

// Writes pretoken starts (offsets in scan.text) to `starts`, which has room for kMaxWindow; returns
// how many. Fewer than kWindow only at the end of the text.
using Gpt2Scanner = std::size_t (*)(Gpt2Scan& scan, std::uint32_t* starts);

// The level's scanner; null for the scalar level, which has pretokenize_scalar(). REQUIRES: this
// machine has the level.
Gpt2Scanner gpt2_scanner(Level level);

// The end of each pretoken as the level's own scanner sees it; nothing when it has none for the
// pattern. For tests. REQUIRES: text has fewer than 2^31 bytes.
std::optional<std::vector<std::int64_t>> scan_ends(Level level, Pattern pattern,
                                                   std::span<const std::uint8_t> text);

}  // namespace tokpack

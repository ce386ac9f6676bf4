// The scanners: pretokens found by operations on masks of 64 bytes, once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/cpu.hpp"
#include "core/pretokenize/scan_rules.hpp"
#include "core/pretokenize/steps.hpp"

namespace tokpack {

inline constexpr std::size_t kWindow = 256;  // pretokens that a scan finds before it returns
inline constexpr std::size_t kMaxWindow =
    kWindow + 128;  // room for the block in which it gets there

// The classes of 64 bytes as masks: bit i is byte i of the block. Each byte of a character has the
// character's classes. Bytes behind the end of the text count as tabs. Masks that a pattern does
// not need are 0.
struct ScanBlock {
  std::uint64_t word = 0;  // letters, and marks where the pattern has them in words
  std::uint64_t number = 0, space = 0, newline = 0;
  std::uint64_t upper = 0, lower = 0, mark = 0, symbol = 0, cjk = 0;
  std::uint64_t blank = 0, apostrophe = 0, slash = 0;
  std::uint64_t high = 0, lead = 0;  // bytes above 0x7F, and above 0xBF
  // First bytes of whitespace characters of 2 and 3 bytes.
  std::uint64_t two_byte_space = 0, three_byte_space = 0;
};

// For a block, whether the byte before it is of a class, in bit 0. The classes are the variables of
// the same names in scan_*.inc.hpp.
struct ScanCarry {
  std::uint64_t word = 0, number = 0, other = 0, space = 0, blank = 0;
  std::uint64_t cjk_word = 0, cjk_other = 0, unclassed = 0, cjk_unclassed = 0;
  std::uint64_t inner_space = 0, newline = 0, tail = 0, any_other = 0, own = 0;
  std::uint64_t not_upper = 0, lowered = 0, punctuated = 0;
  std::uint64_t run = 0, any_blank = 0;  // of tokens of spaces
  unsigned digits = 0;                   // numbers in the pretoken that is not yet full
};

// Where a scan of one text stands between two calls.
struct Scan {
  const std::uint8_t* text;
  std::size_t size;
  ScanRules rules;
  // Runs of 2 to this many spaces are tokens of their own, longest first (GPT-NeoX's added tokens);
  // 0 without such tokens. Only of GPT-2's family.
  std::size_t longest_run = 0;

  std::size_t begin = 0;  // of `current`, the block that is classified but not yet cut
  bool started = false;
  ScanBlock current = {};
  ScanCarry carry = {};
  std::uint64_t set = 0, clear = 0;  // starts to add to `current`, and to remove from it
  std::size_t space_run = 0;         // length of the run of spaces before `current`
  std::uint32_t spill = 0;  // classes of a character's bytes that reach into the next block

  // Only of words with case. From settled_begin to settled_end masks do not suffice, and the starts
  // are those that the matcher finds; settled_open: they do not suffice behind it either.
  Matcher* matcher = nullptr;
  std::vector<std::uint32_t> settled_starts = {};
  const std::uint32_t* settled = nullptr;  // the first of them that is behind all earlier blocks
  const std::uint32_t* settled_stop = nullptr;
  std::size_t settled_begin = 0, settled_end = 0;
  bool settled_open = false;
  std::size_t last_start = 0;       // of the pretokens before `current`
  std::size_t contraction_end = 0;  // of the last one
};

// Writes pretoken starts (offsets in scan.text) to `starts`, which has room for kMaxWindow; returns
// how many. Fewer than kWindow only at the end of the text.
using Scanner = std::size_t (*)(Scan& scan, std::uint32_t* starts);

// The scanner for a shape. REQUIRES: this machine has the level.
Scanner scanner(Level level, const ScanShape& shape);

// Cuts one text after the other, by a scanner where the rules are known, else step by step.
class Cutter {
 public:
  // `steps` live as long, and cut something. `longest_run`: as in Scan.
  Cutter(std::span<const Step> steps, std::optional<ScanRules> rules, Level level = Level::kScalar,
         std::size_t longest_run = 0);

  // REQUIRES: fewer than 2^31 bytes; UTF-8 if needs_utf8().
  void begin(const std::uint8_t* text, std::size_t size);
  bool needs_utf8() const { return scanner_ == nullptr || scan_.rules.shape.cased; }

  // Writes pretoken starts to `starts`, which has room for kMaxWindow; returns how many. Fewer than
  // kWindow only at the end of the text, which is when done() turns true.
  std::size_t next(std::uint32_t* starts);
  bool done() const { return scan_.begin >= scan_.size; }

 private:
  Scanner scanner_ = nullptr;
  Scan scan_{};
  std::optional<Matcher> matcher_;
  Pieces pieces_;
  std::uint32_t last_ = 0;  // where the piece begins that pieces_ gives next
};

// The end of each pretoken of one text, in bytes.
std::vector<std::int64_t> ends_of(Cutter cutter, std::span<const std::uint8_t> text);

}  // namespace tokpack

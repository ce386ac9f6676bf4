// Tokens of pieces of sequences, from a mapped .bin into one array of int64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/cpu.hpp"
#include "core/samples/widen_tokens.hpp"

namespace tokpack {

// The least multiple that is not below the value. REQUIRES: value >= 0, multiple >= 1.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return multiple == 1 ? value : (value + multiple - 1) / multiple * multiple;
}

// `count` tokens of a sequence from its token `first`.
struct Row {
  std::int64_t sequence;
  std::int64_t first;
  std::int64_t count;
};

// Samples one after the other: counts[b] rows make a sample, whose tokens begin at
// places[b] * width of an array. Rows begin at multiples of `multiple` in it.
struct Layout {
  std::span<const std::int64_t> counts;
  std::span<const std::int64_t> places;
  std::int64_t width;
  std::int64_t multiple = 1;
};

// Sets targets[r] to where in `out` the tokens of rows[r] go, and sets to 0 what the rows of a
// sample leave of its `width`, between and behind them. Throws std::invalid_argument for rows or
// places that do not fit.
void lay_out(std::span<const Row> rows, const Layout& layout, std::span<std::int64_t> targets,
             std::span<std::int64_t> out);

// The sequences of a view: `count` numbers of `bytes` (4 or 8) each, in the machine's byte order.
// Row r of a view is of the sequence numbers[rows[r].sequence] of the .bin.
struct ViewNumbers {
  const unsigned char* numbers;
  std::size_t count;
  std::size_t bytes;
};

// The .bin of a dataset, or a track beside it with one value for each of its tokens, with the
// lengths and pointers of its .idx. Files may be broken, so that each entry is checked before it is
// used.
class TokenFile {
 public:
  // values: the .bin or the track, little endian. lengths, pointers: of n sequences, int32 and
  // int64 in the machine's byte order, at any address; pointers are bytes of a .bin whose tokens
  // have token_bytes, 1, 2, 4 or 8; 0 for as many as the values have. All of them, and the numbers
  // of a view, must outlive this object. Without numbers rows are of the sequences of the .bin.
  TokenFile(std::span<const unsigned char> values, TokenType type, const unsigned char* lengths,
            const unsigned char* pointers, std::size_t n, Level level = best_level(),
            ViewNumbers view = {nullptr, 0, 0}, std::size_t token_bytes = 0);

  // Copies the tokens of rows[r] to out[targets[r]] and what follows it. Returns the number of
  // rows, or the first one that lies outside its sequence or outside `out`, or whose sequence does
  // not end where the next one begins in the .bin; the rows before it are copied.
  std::size_t gather(std::span<const Row> rows, std::span<const std::int64_t> targets,
                     std::span<std::int64_t> out) const;

 private:
  const unsigned char* find(const Row& row) const;  // null where the index is wrong
  // The sequence of the .bin that a row means; count_ or more where there is none.
  std::uint64_t sequence_of(const Row& row) const;
  void prefetch_number(const Row& row) const;
  void prefetch_entry(const Row& row) const;
  void prefetch_tokens(const unsigned char* begin, std::int64_t count) const;

  std::span<const unsigned char> values_;
  std::size_t item_bytes_;
  unsigned token_shift_;  // a token of the .bin has 1 << token_shift_ bytes
  WidenTokens widen_;
  const unsigned char* lengths_;
  const unsigned char* pointers_;
  std::size_t count_;
  ViewNumbers view_;
};

}  // namespace tokpack

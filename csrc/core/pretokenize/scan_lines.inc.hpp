// What the patterns share that treat line ends apart. Included behind scan_blocks.inc.hpp.
//
//   \s*[\r\n]+|\s+(?!\S)|\s+
//
// Line ends that follow symbols belong to them; they are not among `space` and `newline` here. In
// what is left of a run of whitespace a pretoken starts at its first character, behind its last
// line end, and at its last character, unless that is a line end or nothing follows.

// `blocking`: what no whitespace is left for, in this block and in the next.
inline std::uint64_t space_starts(Scan& scan, const ScanBlock& block, const ScanBlock& next,
                                  std::uint64_t space, std::uint64_t newline,
                                  std::uint64_t blocking, std::uint64_t next_blocking) {
  ScanCarry& carry = scan.carry;
  const std::uint64_t first = space & ~(space << 1 | carry.space);
  const std::uint64_t inner = block.space & ~block.newline;
  std::uint64_t after = inner & (newline << 1 | carry.newline);
  carry.space = space >> 63;
  carry.newline = newline >> 63;
  // From a line end to one further on in the same run, adding carries: then it was not the last.
  const std::uint64_t sum = inner + after;
  for (std::uint64_t left = sum & block.newline & ~inner; left != 0; left &= left - 1) {
    const std::uint64_t below = (left & (~left + 1)) - 1;
    after &= ~(std::uint64_t{1} << (63 - std::countl_zero(after & below)));
  }
  if (sum < inner) [[unlikely]] {  // the last run reaches into the next block
    const std::uint64_t next_inner = next.space & ~next.newline;
    const bool ends_line = ~next_inner != 0 ? (next.newline >> std::countr_one(next_inner) & 1) != 0
                                            : scan_slow::run_ends_line(scan, scan.begin + 128);
    if (ends_line) after &= ~(std::uint64_t{1} << (63 - std::countl_zero(after)));
  }
  return first | after | last_spaces(block, blocking, next_blocking);
}

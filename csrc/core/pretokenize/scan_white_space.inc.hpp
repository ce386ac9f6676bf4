// White space in the patterns that treat line ends separately. Included after scan_blocks.inc.hpp.
//
//   \s*[\r\n]+|\s+(?!\S)|\s+
//
// In a run of whitespace a pretoken starts at its first character, behind its last line end, and at
// its last character, unless that is a line end or the text ends there.

// `space` and `newline` lack the line ends that belong to symbols before them. `blocking`, in this
// block and in the next: the characters to which a run of whitespace does not leave its last one.
inline std::uint64_t space_starts(Scan& scan, const ScanBlock& block, const ScanBlock& next,
                                  std::uint64_t space, std::uint64_t newline,
                                  std::uint64_t blocking, std::uint64_t next_blocking) {
  ScanCarry& carry = scan.carry;
  const std::uint64_t first = space & ~(space << 1 | carry.space);
  const std::uint64_t inner = block.space & ~block.newline;
  std::uint64_t after = inner & (newline << 1 | carry.newline);
  carry.space = space >> 63;
  carry.newline = newline >> 63;
  // The sum carries from the first space behind a line end to behind the last one. Where that is
  // another line end, nothing starts at the first space.
  const std::uint64_t sum = inner + after;
  for (std::uint64_t left = sum & block.newline & ~inner; left != 0; left &= left - 1) {
    const std::uint64_t below = (left & (~left + 1)) - 1;
    after &= ~(std::uint64_t{1} << (63 - std::countl_zero(after & below)));
  }
  if (sum < inner) [[unlikely]] {  // the last run reaches into the next block
    const std::uint64_t next_inner = next.space & ~next.newline;
    const bool ends_line = ~next_inner != 0 ? (next.newline >> std::countr_one(next_inner) & 1) != 0
                                            : scan_fallback::run_ends_line(scan, scan.begin + 128);
    if (ends_line) after &= ~(std::uint64_t{1} << (63 - std::countl_zero(after)));
  }
  return first | after | last_spaces(block, blocking, next_blocking);
}

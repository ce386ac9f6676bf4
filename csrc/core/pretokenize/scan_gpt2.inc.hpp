// GPT-2's pattern as operations on masks. Included after scan_blocks.inc.hpp.
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// Every byte of a character carries the character's class, so neighbouring bytes stand for
// neighbouring characters. A pretoken starts where a run of one class starts, unless a blank comes
// right before; where a run of whitespace starts; at the last whitespace before something else; and
// around contractions. With `cut_first` each number is a pretoken, without a blank before it.

// The spaces in runs of two or more, which are added tokens. A run longer than the longest token is
// cut into tokens of that length; if this leaves one space, that space is plain text.
inline std::uint64_t space_runs(Scan& scan, const ScanBlock& block, const ScanBlock& next) {
  const std::uint64_t blank = block.blank;
  const std::uint64_t following = blank >> 1 | next.blank << 63;
  std::uint64_t runs = blank & (blank << 1 | scan.carry.any_blank | following);
  std::uint64_t ends = runs & ~following;
  std::size_t before = scan.space_run;
  std::uint64_t rest = runs;
  while (ends != 0) {
    const auto end = static_cast<unsigned>(std::countr_zero(ends));
    const auto start = static_cast<unsigned>(std::countr_zero(rest));
    const std::size_t length = end - start + 1 + (start == 0 ? before : 0);
    if (length > scan.longest_run && length % scan.longest_run == 1) {
      runs &= ~(std::uint64_t{1} << end);
    }
    ends &= ends - 1;
    rest &= end == 63 ? 0 : ~std::uint64_t{0} << (end + 1);
  }
  // The run that is left, if any, reaches the end of the block.
  scan.space_run = rest == 0 ? 0
                             : static_cast<std::size_t>(std::countl_one(rest)) +
                                   (rest == ~std::uint64_t{0} ? before : 0);
  scan.carry.any_blank = blank >> 63;
  return runs;
}

// The pretoken starts in `current`, given the block after it.
template <ScanShape kShape>
  requires(kShape.family == ScanShape::Family::kGpt2)
std::uint64_t cut(Scan& scan, const ScanBlock& block, const ScanBlock& next) {
  ScanCarry& carry = scan.carry;
  const std::uint64_t runs = scan.longest_run != 0 ? space_runs(scan, block, next) : 0;
  const std::uint64_t word = block.word, number = block.number;
  const std::uint64_t space = block.space & ~runs, blank = block.blank & ~runs;
  const std::uint64_t other = ~(word | number | block.space);

  const std::uint64_t first_of_class =
      (word & ~(word << 1 | carry.word)) | (other & ~(other << 1 | carry.other)) |
      (kShape.cut_first ? 0 : number & ~(number << 1 | carry.number));
  const std::uint64_t first_of_space =
      (space & ~(space << 1 | carry.space)) | (runs & ~(runs << 1 | carry.run));
  const std::uint64_t blocking = kShape.cut_first ? block.space | number : block.space;
  const std::uint64_t next_blocking = kShape.cut_first ? next.space | next.number : next.space;
  std::uint64_t starts = (first_of_class & ~(blank << 1 | carry.blank)) | first_of_space |
                         (last_spaces(block, blocking, next_blocking) & ~runs);
  if constexpr (kShape.cut_first) starts |= number_starts(block, scan.rules.digits, carry);

  starts = (starts & ~scan.clear) | scan.set;
  scan.clear = scan.set = 0;
  starts = cut_contractions(scan, block, starts);

  carry.word = word >> 63;
  carry.number = number >> 63;
  carry.other = other >> 63;
  carry.space = space >> 63;
  carry.blank = blank >> 63;
  carry.run = runs >> 63;
  return starts;
}

// The patterns of cl100k and of those made after it as operations on masks: Llama 3, Qwen; and,
// with case, o200k and Tekken. Included after scan_white_space.inc.hpp. C is
// (?i:'s|'t|'re|'ve|'m|'ll|'d).
//
//   C|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// A run of letters is a pretoken, with the last whitespace before it unless that is a line end, or
// with a symbol before it that stands alone and has no blank before it. Symbols are a pretoken with
// a blank before them and the line ends behind them.
//
//   [^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|...
//
// With case, U are upper case, L lower case, and letters without case and marks are both. A run of
// letters and marks is cut before upper case that follows
//   - letters that are not upper case, one of them lower case; or
//   - letters without case, if upper case goes on to the end of the run.

// Replaces the starts from settled_begin to settled_end by those that the matcher has found.
inline std::uint64_t settled_starts(Scan& scan, std::uint64_t starts) {
  const auto below = [&](std::size_t pos) {
    return pos <= scan.begin        ? std::uint64_t{0}
           : pos - scan.begin >= 64 ? ~std::uint64_t{0}
                                    : (std::uint64_t{1} << (pos - scan.begin)) - 1;
  };
  starts &= ~(below(scan.settled_end + 1) & ~below(scan.settled_begin));
  for (; scan.settled != scan.settled_stop; ++scan.settled) {
    if (*scan.settled >= scan.begin + 64) break;
    if (*scan.settled >= scan.begin) starts |= std::uint64_t{1} << (*scan.settled - scan.begin);
  }
  return starts;
}

// Where words are cut because of case.
inline std::uint64_t case_starts(Scan& scan, const ScanBlock& block, const ScanBlock& next) {
  ScanCarry& carry = scan.carry;
  const std::uint64_t upper = block.upper, not_upper = block.word & ~upper;
  const std::uint64_t lowered = flood(not_upper, block.lower | (not_upper & carry.lowered));
  const std::uint64_t first = upper & (not_upper << 1 | carry.not_upper);
  std::uint64_t starts = upper & (lowered << 1 | carry.lowered);
  for (std::uint64_t left = first & ~starts; left != 0; left &= left - 1) {
    const auto at = static_cast<unsigned>(std::countr_zero(left));
    const unsigned end = at + static_cast<unsigned>(std::countr_one(upper >> at));
    bool ends_word = true;
    if (end < 64) {
      ends_word = (block.word >> end & 1) == 0;
    } else if (const auto more = static_cast<unsigned>(std::countr_one(next.upper)); more < 64) {
      ends_word = (next.word >> more & 1) == 0;
    } else {
      ends_word = scan_fallback::upper_ends_word(scan, scan.begin + 128);
    }
    if (ends_word) starts |= std::uint64_t{1} << at;
  }
  carry.lowered = lowered >> 63;
  carry.not_upper = not_upper >> 63;
  return starts;
}

// Corrects the starts where masks do not suffice: at `marks` behind symbols, which belong to them,
// and at contractions, which end a word.
inline std::uint64_t correct_cased(Scan& scan, const ScanBlock& block, std::uint64_t starts,
                                   std::uint64_t words_before, std::uint64_t marks) {
  std::uint64_t left = marks | (block.apostrophe & words_before);
  for (; left != 0; left &= left - 1) {
    const auto at = static_cast<unsigned>(std::countr_zero(left));
    const std::size_t pos = scan.begin + at;
    if (pos <= scan.settled_end && pos >= scan.settled_begin) continue;
    if (marks >> at & 1) {
      const std::uint64_t before = starts & ((std::uint64_t{1} << at) - 1);
      const std::size_t from =
          before != 0 ? scan.begin + 63 - static_cast<std::size_t>(std::countl_zero(before))
                      : scan.last_start;
      scan_fallback::settle(scan, from, pos);
      starts = settled_starts(scan, starts);
      continue;
    }
    // A contraction right behind another one does not end a word.
    if (pos == scan.contraction_end) continue;
    const unsigned size = scan_fallback::contraction(scan, pos);
    if (size == 0) continue;
    const unsigned end = at + size;
    const std::uint64_t through = end < 64 ? (std::uint64_t{1} << end) - 1 : ~std::uint64_t{0};
    starts &= ~(through & ~std::uint64_t{0} << at);
    if (end < 64) starts |= std::uint64_t{1} << end;
    if (end >= 64) {
      scan.clear = (std::uint64_t{1} << (end - 64)) - 1;
      scan.set = std::uint64_t{1} << (end - 64);
    }
    scan.contraction_end = scan.begin + end;
    // What case_starts() took for letters before one without case belongs to the contraction.
    if (scan_fallback::is_uncased(scan, scan.contraction_end)) {
      scan_fallback::settle(scan, scan.contraction_end, scan.contraction_end);
      starts = settled_starts(scan, starts);
    }
  }
  return starts;
}

// The pretoken starts in `current`, given the block after it.
template <ScanShape kShape>
  requires(kShape.family == ScanShape::Family::kCl100k)
std::uint64_t cut(Scan& scan, const ScanBlock& block, const ScanBlock& next) {
  ScanCarry& carry = scan.carry;
  const std::uint64_t any_other = ~(block.word | block.number | block.space);
  const std::uint64_t lines = scan.rules.tail == ScanRules::Tail::kNone ? 0 : block.newline;
  const std::uint64_t ends = lines | block.slash;
  const std::uint64_t tail =
      flood(ends, (lines & (any_other << 1 | carry.any_other)) | (ends & carry.tail));
  const std::uint64_t other = any_other & ~tail;
  const std::uint64_t word = block.word, word_before = word << 1 | carry.word;

  const std::uint64_t first_other =
      other & ~(other << 1 | carry.other) & ~(block.blank << 1 | carry.blank);
  // The bytes of a first symbol, which belongs to a word that follows.
  const std::uint64_t inside = continuations(block);
  std::uint64_t own = first_other | (carry.own & inside);
  if (inside != 0) {
    own |= own << 1 & inside;
    own |= own << 1 & inside;
    own |= own << 1 & inside;
  }
  const std::uint64_t inner_space = block.space & ~block.newline;
  const std::uint64_t own_before = own << 1 | carry.own;
  const std::uint64_t prefix_before = own_before | inner_space << 1 | carry.inner_space;
  std::uint64_t starts = first_other | (word & ~word_before & ~prefix_before) |
                         number_starts(block, scan.rules.digits, carry) |
                         space_starts(scan, block, next, block.space & ~tail, block.newline & ~tail,
                                      block.space, next.space);
  if constexpr (kShape.cased) starts |= case_starts(scan, block, next);
  starts = (starts & ~scan.clear) | scan.set;
  scan.clear = scan.set = 0;
  if constexpr (kShape.cased) {
    if (scan.settled_end > scan.begin) starts = settled_starts(scan, starts);
    while (scan.settled_open && scan.settled_end < scan.begin + 64) {
      scan_fallback::settle(scan, scan.settled_end, scan.settled_end);
      starts = settled_starts(scan, starts);
    }
    const std::uint64_t marks = block.mark & block.lead & (other << 1 | carry.other) & ~own_before;
    starts = correct_cased(scan, block, starts, word_before, marks);
    if (starts != 0) {
      scan.last_start = scan.begin + 63 - static_cast<std::size_t>(std::countl_zero(starts));
    }
  } else {
    starts = cut_contractions(scan, block, starts);
  }

  carry.word = word >> 63;
  carry.number = block.number >> 63;
  carry.any_other = any_other >> 63;
  carry.other = other >> 63;
  carry.own = own >> 63;
  carry.tail = tail >> 63;
  carry.blank = block.blank >> 63;
  carry.inner_space = inner_space >> 63;
  return starts;
}

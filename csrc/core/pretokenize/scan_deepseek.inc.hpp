// The pattern of DeepSeek-V3 as operations on masks. Included after scan_white_space.inc.hpp. Three
// Splits, one after the other:
//
//   \p{N}{1,3}
//   [一-龥぀-ヿ]+
//   P[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// with P for ASCII punctuation. The third sees Chinese and Japanese apart from the rest, since the
// second has separated them, so each of its rules stands here twice. A run of characters that no
// alternative takes, such as controls, is a pretoken; the last one before a word belongs to it.

// Starts among characters that have no class: the first of a run, and the last one before a word.
inline std::uint64_t unclassed_starts(const Scan& scan, const ScanBlock& block,
                                      const ScanBlock& next, std::uint64_t unclassed) {
  const std::uint64_t plain = unclassed & ~block.cjk, cjk = unclassed & block.cjk;
  std::uint64_t starts = (plain & ~(plain << 1 | scan.carry.unclassed)) |
                         (cjk & ~(cjk << 1 | scan.carry.cjk_unclassed));
  for (std::uint64_t left = unclassed & ~continuations(block); left != 0; left &= left - 1) {
    const auto at = static_cast<unsigned>(std::countr_zero(left));
    const std::uint8_t byte = scan.text[scan.begin + at];
    const unsigned end = at + (byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4);
    const ScanBlock& there = end < 64 ? block : next;
    const std::uint64_t same = block.cjk >> at & 1 ? there.cjk : ~there.cjk;
    if (there.word & same & std::uint64_t{1} << (end & 63)) starts |= std::uint64_t{1} << at;
  }
  return starts;
}

template <ScanShape kShape>
  requires(kShape.family == ScanShape::Family::kDeepseek)
std::uint64_t cut(Scan& scan, const ScanBlock& block, const ScanBlock& next) {
  ScanCarry& carry = scan.carry;
  const std::uint64_t cjk = block.cjk;
  const std::uint64_t word = block.word & ~cjk, cjk_word = block.word & cjk;
  const std::uint64_t symbol = block.symbol & ~cjk, cjk_symbol = block.symbol & cjk;
  const std::uint64_t unclassed = ~(block.word | block.symbol | block.number | block.space);
  const std::uint64_t tail =
      flood(block.newline, block.newline & (symbol << 1 | carry.other | carry.tail));

  const std::uint64_t first_symbol =
      symbol & ~(symbol << 1 | carry.other) & ~(block.blank << 1 | carry.blank);
  const std::uint64_t inner_space = block.space & ~block.newline;
  const std::uint64_t ascii_word = block.word & ~block.high;
  const std::uint64_t first_word = word & ~(word << 1 | carry.word);
  const std::uint64_t own = first_symbol & ~block.high;
  const std::uint64_t punctuated = first_word & ascii_word & (own << 1 | carry.own);
  const std::uint64_t prefixed =
      (inner_space | (unclassed & ~cjk)) << 1 | carry.inner_space | carry.unclassed;
  std::uint64_t starts =
      first_symbol | (cjk_symbol & ~(cjk_symbol << 1 | carry.cjk_other)) |
      (first_word & ~prefixed & ~punctuated) |
      (cjk_word & ~(cjk_word << 1 | carry.cjk_word) &
       ~((unclassed & cjk) << 1 | carry.cjk_unclassed)) |
      number_starts(block, scan.rules.digits, carry) |
      space_starts(scan, block, next, block.space & ~tail, block.newline & ~tail,
                   block.space | block.number | cjk, next.space | next.number | next.cjk);
  // A word with punctuation before it ends with its last ASCII letter: the sum carries from the
  // first letter to behind the last.
  std::uint64_t sum;
  const bool more = __builtin_add_overflow(ascii_word, punctuated | carry.punctuated, &sum);
  starts |= sum & ~ascii_word & word;
  carry.punctuated = more;
  if (unclassed != 0) starts |= unclassed_starts(scan, block, next, unclassed);

  carry.word = word >> 63;
  carry.cjk_word = cjk_word >> 63;
  carry.number = block.number >> 63;
  carry.other = symbol >> 63;
  carry.cjk_other = cjk_symbol >> 63;
  carry.unclassed = (unclassed & ~cjk) >> 63;
  carry.cjk_unclassed = (unclassed & cjk) >> 63;
  carry.own = own >> 63;
  carry.tail = tail >> 63;
  carry.blank = block.blank >> 63;
  carry.inner_space = inner_space >> 63;
  return starts;
}

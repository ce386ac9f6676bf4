// GPT-2's split pattern as bit algebra on blocks of 64 bytes. Included by each scanner inside its
// own namespace, after a struct `Isa` of the instruction set's own operations: classify() makes the
// masks of 64 bytes, multibyte_letters() finds letters of two and three bytes, and flatten() writes
// the positions of a mask's bits.
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// Every byte of a character carries the character's class, so neighbouring bytes stand for
// neighbouring characters. A pretoken starts where a run of one class starts, unless a blank comes
// right before; where a run of whitespace starts; at the last whitespace before something else; and
// around contractions.

// Adds the classes of the block's characters of more than one byte.
inline void classify_multibyte(Gpt2Scan& scan, std::size_t begin, Gpt2Scan::Block* block) {
  std::uint64_t letter = scan.spill_letter, number = scan.spill_number, space = scan.spill_space;
  scan.spill_letter = scan.spill_number = scan.spill_space = 0;
  const std::uint8_t* text = scan.text + begin;
  const std::size_t left = scan.size - begin;
  std::uint64_t leads = block->lead;
  if (left > 64) {
    // Most characters are letters, and most letters are known by their first two bytes, 64 at once.
    const MultibyteLetters sure = Isa::multibyte_letters(text, leads);
    letter |= sure.two | sure.two << 1 | sure.three | sure.three << 1 | sure.three << 2;
    scan.spill_letter = sure.two >> 63 | sure.three >> 63 | sure.three >> 62;
    leads &= ~(sure.two | sure.three);
  }
  for (; leads != 0; leads &= leads - 1) {
    const auto at = static_cast<unsigned>(std::countr_zero(leads));
    const std::uint8_t lead = text[at];
    const unsigned size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // Invalid UTF-8 may give any pretokens, but nothing behind the text is read.
    if (at + size > left) break;
    const std::uint32_t code_point = decode_utf8(text + at).value;
    const std::uint8_t kind = code_point < 0x110000 ? char_class(code_point) : 0;
    const std::uint64_t bits = ((std::uint64_t{1} << size) - 1) << at;
    const std::uint64_t spill = ((std::uint64_t{1} << size) - 1) >> 1 >> (63 - at);
    // Masks, not branches, which would be mispredicted: in many scripts letters and marks
    // alternate.
    const std::uint64_t is_letter = -std::uint64_t{(kind & kLetter) != 0};
    const std::uint64_t is_number = -std::uint64_t{(kind & kNumber) != 0};
    letter |= bits & is_letter;
    scan.spill_letter |= spill & is_letter;
    number |= bits & is_number;
    scan.spill_number |= spill & is_number;
    if (kind & kSpace) [[unlikely]] {
      space |= bits;
      scan.spill_space |= spill;
      (size == 2 ? block->two_byte_space : block->three_byte_space) |= std::uint64_t{1} << at;
    }
  }
  block->letter |= letter;
  block->number |= number;
  block->space |= space;
}

inline Gpt2Scan::Block classify_block(Gpt2Scan& scan, std::size_t begin) {
  Gpt2Scan::Block block;
  if (begin + 64 <= scan.size) {
    Isa::classify(scan.text + begin, &block);
  } else {
    alignas(64) std::uint8_t padded[64];
    std::memset(padded, '\n', sizeof padded);
    if (begin < scan.size) std::memcpy(padded, scan.text + begin, scan.size - begin);
    Isa::classify(padded, &block);
  }
  if (block.high != 0) classify_multibyte(scan, begin, &block);
  return block;
}

// How many bytes the contraction at `at` has; 0 when there is none.
inline unsigned contraction(const Gpt2Scan& scan, std::size_t at) {
  const std::size_t left = scan.size - at;
  if (left < 2) return 0;
  const std::uint8_t a = scan.text[at + 1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (left < 3) return 0;
  const std::uint8_t b = scan.text[at + 2];
  return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// The spaces in runs of two or more, which are added tokens. A run longer than the longest token is
// cut into tokens of that length; if this leaves one space, that space is plain text.
inline std::uint64_t space_runs(Gpt2Scan& scan, const Gpt2Scan::Block& block,
                                const Gpt2Scan::Block& next) {
  const std::uint64_t blank = block.blank;
  const std::uint64_t following = blank >> 1 | next.blank << 63;
  std::uint64_t runs = blank & (blank << 1 | scan.any_blank | following);
  std::uint64_t ends = runs & ~following;
  std::size_t before = scan.run;
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
  scan.run = rest == 0 ? 0
                       : static_cast<std::size_t>(std::countl_one(rest)) +
                             (rest == ~std::uint64_t{0} ? before : 0);
  scan.any_blank = blank >> 63;
  return runs;
}

// The pretoken starts in `current`, given the block after it.
inline std::uint64_t cut(Gpt2Scan& scan, const Gpt2Scan::Block& next) {
  const Gpt2Scan::Block& block = scan.current;
  const std::uint64_t runs = scan.longest_run != 0 ? space_runs(scan, block, next) : 0;
  const std::uint64_t letter = block.letter, number = block.number;
  const std::uint64_t space = block.space & ~runs, blank = block.blank & ~runs;
  const std::uint64_t other = ~(letter | number | block.space);

  const std::uint64_t first_of_class = (letter & ~(letter << 1 | scan.letter)) |
                                       (number & ~(number << 1 | scan.number)) |
                                       (other & ~(other << 1 | scan.other));
  const std::uint64_t first_of_space =
      (space & ~(space << 1 | scan.space)) | (runs & ~(runs << 1 | scan.spaces));
  const std::uint64_t last_of_space =
      (space & ~block.high & ~(block.space >> 1 | next.space << 63)) |
      (block.two_byte_space & ~(block.space >> 2 | next.space << 62)) |
      (block.three_byte_space & ~(block.space >> 3 | next.space << 61));
  std::uint64_t starts =
      (first_of_class & ~(blank << 1 | scan.blank)) | first_of_space | last_of_space;

  starts = (starts & ~scan.clear) | scan.set;
  scan.clear = scan.set = 0;
  for (std::uint64_t left = block.apostrophe & starts; left != 0; left &= left - 1) {
    const auto at = static_cast<unsigned>(std::countr_zero(left));
    const unsigned size = contraction(scan, scan.begin + at);
    if (size == 0) continue;
    const unsigned end = at + size;
    if (at < 63) starts &= ~(std::uint64_t{2} << at);
    if (at == 63) scan.clear = 1;
    if (end < 64) starts |= std::uint64_t{1} << end;
    if (end >= 64) scan.set = std::uint64_t{1} << (end - 64);
  }

  scan.letter = letter >> 63;
  scan.number = number >> 63;
  scan.other = other >> 63;
  scan.space = space >> 63;
  scan.blank = blank >> 63;
  scan.spaces = runs >> 63;
  return starts;
}

inline std::size_t scan_gpt2(Gpt2Scan& scan, std::uint32_t* starts) {
  if (!scan.started) {
    scan.started = true;
    scan.current = classify_block(scan, 0);
  }
  std::size_t count = 0;
  while (scan.begin < scan.size && count < kWindow) {
    const Gpt2Scan::Block next = classify_block(scan, scan.begin + 64);
    std::uint64_t mask = cut(scan, next);
    const std::size_t left = scan.size - scan.begin;
    if (left < 64) mask &= (std::uint64_t{1} << left) - 1;
    count += Isa::flatten(mask, static_cast<std::uint32_t>(scan.begin), starts + count);
    scan.current = next;
    scan.begin += 64;
  }
  return count;
}

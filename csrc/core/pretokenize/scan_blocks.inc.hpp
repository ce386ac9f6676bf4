// Text to masks of classes, 64 bytes at a time. Included by each scanner inside its own namespace,
// after a struct `Isa` of the instruction set's own operations: Bytes, 64 of them, and load();
// comparisons that give masks, with bit i for byte i; any(), whether a byte has one of some bits;
// code_point() and flatten() as in scan_common.inc.hpp.

// Bytes that a block reads: 64 and the rest of its last character.
inline constexpr std::size_t kBlockReads = 64 + 4;

// Chinese and Japanese, in the bit of kNewline, which no character beyond ASCII has.
inline constexpr std::uint8_t kCjk = kNewline;

template <ScanShape kShape>
std::uint8_t scan_class(std::uint32_t code_point) {
  std::uint8_t bits = char_class(code_point);
  if constexpr (kShape.family == ScanShape::Family::kDeepseek) {
    bits |= scan_fallback::is_cjk(code_point) ? kCjk : 0;
  }
  if constexpr (kShape.family == ScanShape::Family::kGpt2 && kShape.cut_first) {
    bits |= scan_fallback::is_new_number(code_point) ? kNumber : 0;
  }
  return bits;
}

// Adds the classes of the block's characters of more than one byte. REQUIRES: kBlockReads readable
// bytes.
template <ScanShape kShape>
void classify_multibyte(Scan& scan, const std::uint8_t* text, ScanBlock* block) {
  // Each lead byte writes the class of its character to four bytes. Where the character has fewer,
  // the next character overwrites the others, or they are ASCII, which `high` masks out.
  alignas(64) std::uint8_t classes[kBlockReads] = {};
  std::memcpy(classes, &scan.spill, sizeof scan.spill);
  for (std::uint64_t leads = block->lead; leads != 0; leads &= leads - 1) {
    const auto at = static_cast<unsigned>(std::countr_zero(leads));
    const std::uint32_t code_point =
        std::min(Isa::code_point(load<std::uint32_t>(text + at)), std::uint32_t{0x10FFFF});
    const std::uint32_t four = scan_class<kShape>(code_point) * 0x01010101u;
    std::memcpy(classes + at, &four, sizeof four);
  }
  std::memcpy(&scan.spill, classes + 64, sizeof scan.spill);
  const auto bytes = Isa::load(classes);
  const auto any = [&](unsigned bits) __attribute__((always_inline)) {
    return Isa::any(bytes, static_cast<std::uint8_t>(bits)) & block->high;
  };
  block->word |= any(kShape.marks ? kLetter | kMark : kLetter);
  block->number |= any(kNumber);
  if constexpr (kShape.cased) {
    block->upper |= any(kUpper);
    block->lower |= any(kLower);
    block->mark |= any(kMark);
  }
  if constexpr (kShape.family == ScanShape::Family::kDeepseek) {
    block->symbol |= any(kSymbol);
    block->cjk |= any(kCjk);
  }
  const std::uint64_t space = any(kSpace);
  const std::uint64_t three = Isa::at_least(Isa::load(text), 0xE0);
  block->space |= space;
  block->two_byte_space = space & block->lead & ~three;
  block->three_byte_space = space & three;
}

template <ScanShape kShape>
ScanBlock classify(Scan& scan, std::size_t begin) {
  const std::uint8_t* text = scan.text + begin;
  std::uint8_t padded[kBlockReads];
  if (begin + kBlockReads > scan.size) [[unlikely]] {
    std::memset(padded, '\t', sizeof padded);
    if (begin < scan.size) {
      std::memcpy(padded, text, std::min(scan.size - begin, sizeof padded));
    }
    text = padded;
  }
  const auto bytes = Isa::load(text);
  ScanBlock block;
  const std::uint64_t letter = Isa::ascii_letters(bytes);
  block.word = letter;
  block.number = Isa::in_range(bytes, '0', 10);
  block.blank = Isa::equal(bytes, ' ');
  block.space = block.blank | Isa::in_range(bytes, '\t', 5);
  if constexpr (kShape.family != ScanShape::Family::kDeepseek) {
    if (scan.rules.contractions != ScanRules::Contractions::kNone) {
      block.apostrophe = Isa::equal(bytes, '\'');
    }
  }
  if constexpr (kShape.family == ScanShape::Family::kCl100k) {
    if (scan.rules.tail == ScanRules::Tail::kLinesAndSlashes) {
      block.slash = Isa::equal(bytes, '/');
    }
  }
  if constexpr (kShape.family != ScanShape::Family::kGpt2) {
    block.newline = Isa::equal(bytes, '\n') | Isa::equal(bytes, '\r');
  }
  if constexpr (kShape.cased) {
    block.upper = Isa::in_range(bytes, 'A', 26);
    block.lower = letter & ~block.upper;
  }
  block.high = Isa::at_least(bytes, 0x80);
  if constexpr (kShape.family == ScanShape::Family::kDeepseek) {
    const std::uint64_t printable = Isa::in_range(bytes, '!', '~' - '!' + 1);
    block.symbol = printable & ~letter & ~block.number;
  }
  if (block.high != 0) {
    block.lead = Isa::at_least(bytes, 0xC0);
    classify_multibyte<kShape>(scan, text, &block);
  }
  return block;
}

// The bytes of characters but the first of each.
inline std::uint64_t continuations(const ScanBlock& block) { return block.high & ~block.lead; }

// The first bytes of whitespace characters, line ends aside, that stand right before anything but
// `blocking`: here a pretoken starts that takes the last space of a run.
inline std::uint64_t last_spaces(const ScanBlock& block, std::uint64_t blocking,
                                 std::uint64_t next_blocking) {
  return (block.space & ~block.newline & ~block.high & ~(blocking >> 1 | next_blocking << 63)) |
         (block.two_byte_space & ~(blocking >> 2 | next_blocking << 62)) |
         (block.three_byte_space & ~(blocking >> 3 | next_blocking << 61));
}

// `from`, and the bits of `mask` behind it without a gap.
inline std::uint64_t flood(std::uint64_t mask, std::uint64_t from) {
  return mask & (((mask + from) ^ mask) | from);
}

// Where pretokens of numbers start: at the first of a run, at each number, or at every second or
// third.
inline std::uint64_t number_starts(const ScanBlock& block, unsigned digits, ScanCarry& carry) {
  const std::uint64_t number = block.number, leads = number & ~continuations(block);
  if (digits == 1) return leads;
  std::uint64_t starts = number & ~(number << 1 | carry.number);
  if (digits == 0) return starts;
  if (number & block.high) [[unlikely]] {
    starts = 0;
    for (std::uint64_t left = leads; left != 0; left &= left - 1) {
      const std::uint64_t bit = left & (~left + 1);
      const std::uint64_t before = number << 1 | carry.number;
      if (!(bit & before) || carry.digits == digits) {
        starts |= bit;
        carry.digits = 0;
      }
      ++carry.digits;
    }
    return starts;
  }
  if (carry.number & number) {
    // The run goes on from the block before. Its next pretoken begins after the digits that are
    // still to come in this one.
    const unsigned left = digits - carry.digits;
    const std::uint64_t through = (std::uint64_t{2} << left) - 1;
    if ((number & through) == through) starts |= std::uint64_t{1} << left;
  }
  const std::uint64_t full = number & number << 1 & (digits == 3 ? number << 2 : ~std::uint64_t{0});
  for (std::uint64_t more = starts << digits & full; more != 0; more = more << digits & full) {
    starts |= more;
  }
  if (number >> 63) {
    // The last start belongs to the run that reaches the end of the block: even a run that came
    // from the block before has begun a pretoken within these 64 bytes.
    carry.digits = 1 + static_cast<unsigned>(std::countl_zero(starts));
  }
  return starts;
}

// Makes a pretoken of each contraction that is at a start.
inline std::uint64_t cut_contractions(Scan& scan, const ScanBlock& block, std::uint64_t starts) {
  for (std::uint64_t left = block.apostrophe & starts; left != 0; left &= left - 1) {
    const auto at = static_cast<unsigned>(std::countr_zero(left));
    const unsigned size = scan_fallback::contraction(scan, scan.begin + at);
    if (size == 0) continue;
    const unsigned end = at + size;
    if (at < 63) starts &= ~(std::uint64_t{2} << at);
    if (at == 63) scan.clear = 1;
    if (end < 64) starts |= std::uint64_t{1} << end;
    if (end >= 64) scan.set = std::uint64_t{1} << (end - 64);
  }
  return starts;
}

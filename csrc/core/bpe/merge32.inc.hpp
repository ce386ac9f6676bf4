// BPE of one word, with ids and ranks of any size. Included by the kernels, each inside its own
// namespace, after a struct `Merge32Isa` of operations on a register of 32-bit lanes.

inline constexpr std::size_t kMerge32Limit = LongWordCache::kMaxSize;

// The ranks of all neighbouring pairs of a word of at most 32 bytes, in registers. The lane of the
// pair that begins at symbol i holds its rank and, in the low five bits, i: so of equal ranks the
// leftmost is the lowest.
template <unsigned kRegisters>
class Ranks32 {
 public:
  using Lanes = Merge32Isa::Lanes;

  Ranks32(const std::uint32_t* first, std::uint64_t pairs) {
    for (unsigned r = 0; r < kRegisters; ++r) {
      iota_[r] = Merge32Isa::iota(Merge32Isa::kLanes * r);
      lanes_[r] = Merge32Isa::either(
          Merge32Isa::shift_left(Merge32Isa::load(first + Merge32Isa::kLanes * r)), iota_[r]);
    }
    set(~pairs, MergeTable32::kNoRank);
  }

  std::uint32_t lowest() const {
    Lanes least = lanes_[0];
    for (unsigned r = 1; r < kRegisters; ++r) least = Merge32Isa::least(least, lanes_[r]);
    return Merge32Isa::lowest(least);
  }

  void set(std::uint64_t lanes, std::uint32_t rank) {
    const Lanes value = Merge32Isa::all(rank << 5);
    for (unsigned r = 0; r < kRegisters; ++r) {
      lanes_[r] = Merge32Isa::choose(static_cast<std::uint32_t>(lanes >> (Merge32Isa::kLanes * r)),
                                     Merge32Isa::either(value, iota_[r]), lanes_[r]);
    }
  }

 private:
  Lanes lanes_[kRegisters];
  Lanes iota_[kRegisters];
};

// Merges at most kPairs + 1 symbols, given the ranks of their first pairs. One more symbol, number
// 32, is for "no neighbour".
template <unsigned kPairs>
inline std::size_t merge32_symbols(const MergeTable32& merges, std::uint32_t* symbols,
                                   const std::uint32_t* first_ranks, std::size_t size,
                                   std::uint32_t* out) {
  constexpr unsigned kRegisters = (kPairs + Merge32Isa::kLanes - 1) / Merge32Isa::kLanes;
  symbols[32] = MergeTable32::kNoSymbol;
  // Bit i: there is a symbol i. Symbols do not move: a merge clears the bit of the right one.
  std::uint64_t alive = (std::uint64_t{1} << size) - 1;
  Ranks32<kRegisters> ranks(first_ranks, alive >> 1);
  std::uint32_t best = ranks.lowest();
  while (best >> 5 != MergeTable32::kNoRank) {
    const unsigned at = best & 31;
    const std::uint32_t product = merges.product(best >> 5);
    symbols[at] = product;
    std::uint64_t right = alive & (~std::uint64_t{1} << at);
    const std::uint64_t merged = right & (~right + 1);
    right ^= merged;
    alive ^= merged;
    const std::uint64_t left = alive & ((std::uint64_t{1} << at) - 1);
    const auto after = static_cast<unsigned>(std::countr_zero(right | std::uint64_t{1} << 32));
    const unsigned before = left != 0 ? 63 - static_cast<unsigned>(std::countl_zero(left)) : 32;
    const std::uint32_t with_after = merges.rank(product, symbols[after]);
    const std::uint32_t with_before = merges.rank(symbols[before], product);
    merges.prefetch_product(with_after);
    merges.prefetch_product(with_before);
    const std::uint64_t at_bit = std::uint64_t{1} << at, before_bit = std::uint64_t{1} << before;
    ranks.set(merged | at_bit | before_bit, MergeTable32::kNoRank);
    // Most often the next merge is not one of the two new pairs. The branch lets the processor
    // predict that and go on before the ranks of the new pairs have come from memory.
    best = ranks.lowest();
    const std::uint32_t newest = std::min(with_after << 5 | at, with_before << 5 | (before & 31));
    if (newest < best) [[unlikely]] {
      // Keeps the compiler from a conditional move, which would wait for the ranks.
      asm volatile("");
      best = newest;
    }
    ranks.set(at_bit, with_after);
    ranks.set(before_bit, with_before);
  }
  Merge32Isa::store_kept(symbols, alive, out);
  return static_cast<std::size_t>(std::popcount(alive));
}

// Words of up to kPairs + 1 bytes. Loops run to the upper bound: a branch on the size would be
// mispredicted.
template <unsigned kPairs>
inline std::size_t merge32_bytes(const MergeTable32& merges, const std::uint8_t* text,
                                 std::size_t size, std::uint32_t* out) {
  alignas(64) std::uint32_t symbols[33], ranks[32];
  symbols[0] = merges.byte_id(text[0]);
  for (std::size_t i = 0; i < kPairs; ++i) {
    symbols[i + 1] = merges.byte_id(text[i + 1]);
    ranks[i] = merges.byte_pair(text[i], text[i + 1]);
  }
  return merge32_symbols<kPairs>(merges, symbols, ranks, size, out);
}

// Words with characters beyond ASCII, which are whole symbols at first where that comes to the
// same; 0 for words of too many symbols.
inline std::size_t merge32_characters(const MergeTable32& merges, const FirstSymbols& first,
                                      const std::uint8_t* text, std::size_t size,
                                      std::uint32_t* out) {
  alignas(64) std::uint32_t symbols[33], ranks[32];
  const std::size_t count = first.write(merges, text, size, symbols);
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = merges.rank(symbols[i], symbols[i + 1]);
  if (count <= 9) return count == 0 ? 0 : merge32_symbols<8>(merges, symbols, ranks, count, out);
  if (count <= 17) return merge32_symbols<16>(merges, symbols, ranks, count, out);
  return merge32_symbols<31>(merges, symbols, ranks, count, out);
}

// REQUIRES: kKeySlack readable bytes.
inline bool is_ascii(const std::uint8_t* text, std::size_t size) {
  static_assert(kKeySlack >= 32);
  constexpr std::uint64_t kTopBits = 0x8080808080808080;
  if (size > 32) {
    return std::all_of(text, text + size, [](std::uint8_t byte) { return byte < 0x80; });
  }
  // Without a branch on the size, which would be mispredicted.
  std::uint64_t beyond = 0;  // bit i: byte i is
  for (unsigned i = 0; i < 32; i += 8) {
    const std::uint64_t tops = load<std::uint64_t>(text + i) & kTopBits;
    beyond |= ((tops >> 7) * 0x0102040810204080 >> 56) << i;
  }
  return (beyond & ((std::uint64_t{1} << size) - 1)) == 0;
}

// Words too long for registers: the lowest rank is searched in memory, and symbols are linked to
// their neighbours. A pair's rank has the eight bits of its position below it.
inline std::size_t merge32_in_memory(const MergeTable32& merges, const std::uint8_t* text,
                                     std::size_t size, std::uint32_t* out) {
  static_assert(kMerge32Limit <= 256);
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  alignas(64) std::uint32_t ranks[kMerge32Limit];
  // One more symbol at either end, which merges with nothing, so that each has two neighbours.
  std::uint32_t symbols[kMerge32Limit + 2];
  std::uint16_t next[kMerge32Limit + 2], previous[kMerge32Limit + 2];
  const std::size_t lanes =
      (size + Merge32Isa::kLanes - 1) / Merge32Isa::kLanes * Merge32Isa::kLanes;
  const auto set = [&](std::size_t at, std::uint32_t rank) __attribute__((always_inline)) {
    ranks[at] = rank == MergeTable32::kNoRank ? kNone : rank << 8 | static_cast<std::uint32_t>(at);
  };
  symbols[0] = symbols[size + 1] = MergeTable32::kNoSymbol;
  for (std::size_t i = 0; i < size; ++i) {
    symbols[i + 1] = merges.byte_id(text[i]);
    next[i + 1] = static_cast<std::uint16_t>(i + 2);
    previous[i + 1] = static_cast<std::uint16_t>(i);
    if (i + 1 < size) set(i, merges.byte_pair(text[i], text[i + 1]));
  }
  for (std::size_t i = size - 1; i < lanes; ++i) ranks[i] = kNone;
  for (;;) {
    Merge32Isa::Lanes least = Merge32Isa::load(ranks);
    for (std::size_t i = Merge32Isa::kLanes; i < lanes; i += Merge32Isa::kLanes) {
      least = Merge32Isa::least(least, Merge32Isa::load(ranks + i));
    }
    const std::uint32_t best = Merge32Isa::lowest(least);
    if (best == kNone) break;
    const std::size_t at = (best & 255) + 1;  // counted as symbols are
    const std::size_t merged = next[at], after = next[merged], before = previous[at];
    symbols[at] = merges.product(best >> 8);
    next[at] = static_cast<std::uint16_t>(after);
    previous[after] = static_cast<std::uint16_t>(at);
    if (merged <= size) ranks[merged - 1] = kNone;
    set(at - 1, merges.rank(symbols[at], symbols[after]));
    if (before != 0) set(before - 1, merges.rank(symbols[before], symbols[at]));
  }
  std::size_t count = 0;
  for (std::size_t i = 1; i <= size; i = next[i]) out[count++] = symbols[i];
  return count;
}

inline std::size_t merge32(const MergeTable32& merges, const FirstSymbols& first,
                           const std::uint8_t* text, std::size_t size, std::uint32_t* out) {
  if (!first.empty() && size <= 3 * FirstSymbols::kMost && !is_ascii(text, size)) {
    const std::size_t count = merge32_characters(merges, first, text, size, out);
    if (count != 0) return count;
  }
  if (size <= 9) return merge32_bytes<8>(merges, text, size, out);
  if (size <= 17) return merge32_bytes<16>(merges, text, size, out);
  if (size <= 32) return merge32_bytes<31>(merges, text, size, out);
  return merge32_in_memory(merges, text, size, out);
}

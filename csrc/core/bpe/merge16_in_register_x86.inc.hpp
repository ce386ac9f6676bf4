// BPE of short words with ids and ranks of 16 bits, the ranks of all neighbouring pairs in a
// register. Included by the x86 kernels, each inside its own namespace, after an `Isa` with
// store_kept(), and after `Ranks16`: lane i holds the rank of the pair that begins at byte i. Its
// constructor takes the first ranks and a mask of the lanes that are pairs; lowest<kEights>() gives
// the lowest of 8 * kEights lanes, the rank in the high half and the lane, the leftmost of equals,
// in the low half; set(lanes, rank) changes the lanes of a mask.

// Words of up to 8 * kEights + 1 bytes, but no more than 32. Loops run to the upper bound: a branch
// on the size would be mispredicted.
template <int kEights>
inline std::size_t merge16_in_register(const MergeTable16& merges, const std::uint8_t* text,
                                       std::size_t size, std::uint16_t* out) {
  constexpr std::uint32_t kNone = MergeTable16::kNone;
  constexpr std::size_t kPairs = 8 * kEights < 32 ? 8 * kEights : 31;
  // The symbol that begins at byte i, and what the pair there merges to. Number 32 is for
  // "no neighbour".
  alignas(64) std::uint16_t symbols[64];
  std::uint16_t products[33];
  alignas(64) std::uint16_t first_ranks[32];
  symbols[32] = kNone;
  symbols[0] = merges.byte_id(text[0]);
  for (std::size_t i = 0; i < kPairs; ++i) {
    const MergeTable16::Rule rule = merges.byte_pair(text[i], text[i + 1]);
    symbols[i + 1] = merges.byte_id(text[i + 1]);
    first_ranks[i] = static_cast<std::uint16_t>(rule);
    products[i] = static_cast<std::uint16_t>(rule >> 16);
  }
  // Bit i: a symbol begins at byte i. Symbols do not move: a merge clears the bit of the right one.
  std::uint64_t alive = (std::uint64_t{1} << size) - 1;
  Ranks16 ranks(first_ranks, alive >> 1);
  std::uint32_t best = ranks.lowest<kEights>();
  while (best >> 16 != kNone) {
    const unsigned at = best & 0xFFFF;
    const std::uint16_t product = products[at];
    symbols[at] = product;
    std::uint64_t right = alive & (~std::uint64_t{1} << at);
    const std::uint64_t merged = right & (~right + 1);
    right ^= merged;
    alive ^= merged;
    const std::uint64_t left = alive & ((std::uint64_t{1} << at) - 1);
    const auto after = static_cast<unsigned>(_tzcnt_u64(right | std::uint64_t{1} << 32));
    const unsigned before = left != 0 ? 63 - static_cast<unsigned>(_lzcnt_u64(left)) : 32;
    const MergeTable16::Rule with_after = merges.find(product, symbols[after]);
    const MergeTable16::Rule with_before = merges.find(symbols[before], product);
    const std::uint64_t at_bit = std::uint64_t{1} << at, before_bit = std::uint64_t{1} << before;
    ranks.set(merged | at_bit | before_bit, kNone);
    // Most often the next merge is not one of the two new pairs. The branch lets the processor
    // predict that and go on before the rules of the new pairs have come from memory.
    best = ranks.lowest<kEights>();
    const std::uint32_t newest = std::min(with_after << 16 | at, with_before << 16 | before);
    if (newest < best) [[unlikely]] {
      // Keeps the compiler from a conditional move, which would wait for the rules.
      asm volatile("");
      best = newest;
    }
    products[at] = static_cast<std::uint16_t>(with_after >> 16);
    products[before] = static_cast<std::uint16_t>(with_before >> 16);
    ranks.set(at_bit, with_after);
    ranks.set(before_bit, with_before);
  }
  Isa::store_kept(symbols, alive, out);
  return static_cast<std::size_t>(_mm_popcnt_u64(alive));
}

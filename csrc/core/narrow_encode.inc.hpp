// BPE of words of 2 to 32 bytes with the ranks of all neighbouring pairs in one register. Included
// by the AVX-512 kernel inside its own namespace.

// Lowest rank and its place; the leftmost of equals, since the instruction prefers the lower index.
template <int kParts>
inline std::uint32_t lowest(__m512i ranks) {
  const auto part = [](__m128i eight, unsigned base) __attribute__((always_inline)) {
    const auto found = static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(eight)));
    return (found << 16) + (found >> 16) + base;  // rank in the high half, place in the low half
  };
  std::uint32_t best = part(_mm512_castsi512_si128(ranks), 0);
  if constexpr (kParts > 1) best = std::min(best, part(_mm512_extracti32x4_epi32(ranks, 1), 8));
  if constexpr (kParts > 2) {
    best = std::min(best, part(_mm512_extracti32x4_epi32(ranks, 2), 16));
    best = std::min(best, part(_mm512_extracti32x4_epi32(ranks, 3), 24));
  }
  return best;
}

template <int kParts>
std::size_t encode_narrow_parts(const NarrowMerges& merges, const std::uint8_t* text,
                                std::size_t size, std::uint32_t* out) {
  constexpr std::uint32_t kNone = NarrowMerges::kNone;
  alignas(64) std::uint16_t first_ranks[32];
  std::uint32_t symbols[33];
  std::uint32_t products[33];
  _mm512_store_si512(first_ranks, _mm512_set1_epi16(-1));
  symbols[32] = kNone;  // stands for "no neighbour": it merges with nothing
  for (std::size_t i = 0; i < size; ++i) symbols[i] = merges.byte_id(text[i]);
  for (std::size_t i = 0; i + 1 < size; ++i) {
    const NarrowMerges::Rule rule = merges.byte_pair(text[i], text[i + 1]);
    first_ranks[i] = static_cast<std::uint16_t>(rule);
    products[i] = rule >> 16;
  }
  __m512i ranks = _mm512_load_si512(first_ranks);
  // Bit i: a symbol begins at byte i. Symbols do not move; the right one of a merge just ends.
  std::uint64_t alive = (std::uint64_t{1} << size) - 1;
  for (;;) {
    const std::uint32_t best = lowest<kParts>(ranks);
    if (best >> 16 == kNone) break;
    const unsigned at = best & 0xFFFF;
    const std::uint32_t product = products[at];
    symbols[at] = product;
    std::uint64_t right = alive & (~std::uint64_t{1} << at);
    const std::uint64_t merged = right & (~right + 1);
    alive ^= merged;
    right ^= merged;
    const std::uint64_t left = alive & ((std::uint64_t{1} << at) - 1);
    const unsigned after = right != 0 ? static_cast<unsigned>(std::countr_zero(right)) : 32;
    const unsigned before = left != 0 ? 63 - static_cast<unsigned>(std::countl_zero(left)) : 32;
    const NarrowMerges::Rule with_after = merges.find(product, symbols[after]);
    const NarrowMerges::Rule with_before = merges.find(symbols[before], product);
    products[at] = with_after >> 16;
    products[before] = with_before >> 16;
    const auto lane = [](std::uint64_t bits) { return static_cast<__mmask32>(bits); };
    ranks = _mm512_mask_set1_epi16(ranks, lane(merged), static_cast<short>(kNone));
    ranks =
        _mm512_mask_set1_epi16(ranks, lane(std::uint64_t{1} << at), static_cast<short>(with_after));
    ranks = _mm512_mask_set1_epi16(ranks, lane(std::uint64_t{1} << before),
                                   static_cast<short>(with_before));
  }
  std::size_t count = 0;
  for (; alive != 0; alive &= alive - 1) {
    out[count++] = symbols[std::countr_zero(alive)];
  }
  return count;
}

inline std::size_t encode_narrow(const NarrowMerges& merges, const std::uint8_t* text,
                                 std::size_t size, std::uint32_t* out) {
  if (size <= 9) return encode_narrow_parts<1>(merges, text, size, out);
  if (size <= 17) return encode_narrow_parts<2>(merges, text, size, out);
  return encode_narrow_parts<4>(merges, text, size, out);
}

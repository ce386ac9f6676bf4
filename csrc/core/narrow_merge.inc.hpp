// BPE of words of 2 to kMaxNarrow bytes; of those of up to 32, the ranks of all neighbouring pairs
// are in one register. Included by the AVX-512 kernel inside its own namespace.

// Lowest rank in the high half and its place in the low half; the leftmost of equals.
template <int kParts>
inline std::uint32_t lowest(__m512i ranks) {
  const auto part = [](__m128i eight, unsigned base) __attribute__((always_inline)) {
    const auto found = static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(eight)));
    return (found << 16) + (found >> 16) + base;
  };
  std::uint32_t best = part(_mm512_castsi512_si128(ranks), 0);
  if constexpr (kParts > 1) best = std::min(best, part(_mm512_extracti32x4_epi32(ranks, 1), 8));
  if constexpr (kParts > 2) {
    best = std::min(best, part(_mm512_extracti32x4_epi32(ranks, 2), 16));
    best = std::min(best, part(_mm512_extracti32x4_epi32(ranks, 3), 24));
  }
  return best;
}

// Words of up to 8 * kParts + 1 bytes, but no more than 32. Loops run to the upper bound, so that
// the processor need not guess the size.
template <int kParts>
inline std::size_t merge_parts(const NarrowMerges& merges, const std::uint8_t* text,
                               std::size_t size, std::uint16_t* out) {
  constexpr std::uint32_t kNone = NarrowMerges::kNone;
  constexpr std::size_t kPairs = 8 * kParts < 32 ? 8 * kParts : 31;
  alignas(64)
      std::uint16_t symbols[64];  // that begins at byte i; the 33rd stands for "no neighbour"
  alignas(64) std::uint16_t first_ranks[32];
  std::uint16_t products[33];  // of the pair that begins at byte i
  symbols[32] = kNone;
  symbols[0] = merges.byte_id(text[0]);
  for (std::size_t i = 0; i < kPairs; ++i) {
    const NarrowMerges::Rule rule = merges.byte_pair(text[i], text[i + 1]);
    symbols[i + 1] = merges.byte_id(text[i + 1]);
    first_ranks[i] = static_cast<std::uint16_t>(rule);
    products[i] = static_cast<std::uint16_t>(rule >> 16);
  }
  // Bit i: a symbol begins at byte i. Symbols do not move; the right one of a merge just ends.
  std::uint64_t alive = (std::uint64_t{1} << size) - 1;
  __m512i ranks = _mm512_mask_blend_epi16(static_cast<__mmask32>(alive >> 1), _mm512_set1_epi16(-1),
                                          _mm512_load_si512(first_ranks));
  std::uint32_t best = lowest<kParts>(ranks);
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
    const NarrowMerges::Rule with_after = merges.find(product, symbols[after]);
    const NarrowMerges::Rule with_before = merges.find(symbols[before], product);
    const auto set = [&](std::uint64_t lanes, std::uint32_t rank) __attribute__((always_inline)) {
      ranks =
          _mm512_mask_set1_epi16(ranks, static_cast<__mmask32>(lanes), static_cast<short>(rank));
    };
    const std::uint64_t at_bit = std::uint64_t{1} << at, before_bit = std::uint64_t{1} << before;
    set(merged | at_bit | before_bit, kNone);
    // Most often the next merge is elsewhere. So it is guessed, by a branch, before the rules of
    // the new pairs have come from memory.
    best = lowest<kParts>(ranks);
    const std::uint32_t newest = std::min(with_after << 16 | at, with_before << 16 | before);
    if (newest < best) [[unlikely]] {
      asm volatile("");  // no conditional move, which would wait
      best = newest;
    }
    products[at] = static_cast<std::uint16_t>(with_after >> 16);
    products[before] = static_cast<std::uint16_t>(with_before >> 16);
    set(at_bit, with_after);
    set(before_bit, with_before);
  }
  const __m512i kept =
      _mm512_maskz_compress_epi16(static_cast<__mmask32>(alive), _mm512_load_si512(symbols));
  _mm512_storeu_si512(out, kept);
  return static_cast<std::size_t>(_mm_popcnt_u64(alive));
}

// Words of up to kMaxNarrow bytes, whose ranks do not fit one register: the lowest is looked for in
// memory, 32 at a time, and symbols are linked to their neighbours.
inline std::size_t merge_many(const NarrowMerges& merges, const std::uint8_t* text,
                              std::size_t size, std::uint16_t* out) {
  constexpr std::uint32_t kNone = NarrowMerges::kNone;
  alignas(64) std::uint16_t ranks[kMaxNarrow + 1];
  // One more at either end: symbols[0] and symbols[size + 1] merge with nothing.
  std::uint16_t symbols[kMaxNarrow + 2], products[kMaxNarrow + 2];
  std::uint16_t next[kMaxNarrow + 2], previous[kMaxNarrow + 2];
  const std::size_t registers = (size + 31) / 32;
  for (std::size_t r = 0; r < registers; ++r) {
    _mm512_store_si512(ranks + 32 * r, _mm512_set1_epi16(-1));
  }
  symbols[0] = symbols[size + 1] = kNone;
  for (std::size_t i = 0; i < size; ++i) {
    symbols[i + 1] = merges.byte_id(text[i]);
    next[i + 1] = static_cast<std::uint16_t>(i + 2);
    previous[i + 1] = static_cast<std::uint16_t>(i);
    if (i + 1 == size) break;
    const NarrowMerges::Rule rule = merges.byte_pair(text[i], text[i + 1]);
    ranks[i] = static_cast<std::uint16_t>(rule);
    products[i + 1] = static_cast<std::uint16_t>(rule >> 16);
  }
  for (;;) {
    __m512i least = _mm512_load_si512(ranks);
    for (std::size_t r = 1; r < registers; ++r) {
      least = _mm512_min_epu16(least, _mm512_load_si512(ranks + 32 * r));
    }
    const __m256i half =
        _mm256_min_epu16(_mm512_castsi512_si256(least), _mm512_extracti64x4_epi64(least, 1));
    const __m128i quarter =
        _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const auto rank = static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(quarter)));
    if ((rank & 0xFFFF) == kNone) break;
    const __m512i wanted = _mm512_set1_epi16(static_cast<short>(rank));
    std::size_t r = 0;
    std::uint32_t equal;
    while ((equal = _mm512_cmpeq_epi16_mask(_mm512_load_si512(ranks + 32 * r), wanted)) == 0) ++r;
    const std::size_t at = 32 * r + _tzcnt_u32(equal) + 1;  // counted as symbols are
    const std::size_t merged = next[at], after = next[merged], before = previous[at];
    symbols[at] = products[at];
    next[at] = static_cast<std::uint16_t>(after);
    previous[after] = static_cast<std::uint16_t>(at);
    ranks[merged - 1] = kNone;
    const NarrowMerges::Rule with_after = merges.find(symbols[at], symbols[after]);
    ranks[at - 1] = static_cast<std::uint16_t>(with_after);
    products[at] = static_cast<std::uint16_t>(with_after >> 16);
    if (before == 0) continue;
    const NarrowMerges::Rule with_before = merges.find(symbols[before], symbols[at]);
    ranks[before - 1] = static_cast<std::uint16_t>(with_before);
    products[before] = static_cast<std::uint16_t>(with_before >> 16);
  }
  std::size_t count = 0;
  for (std::size_t i = 1; i <= size; i = next[i]) out[count++] = symbols[i];
  return count;
}

inline std::size_t merge_narrow(const NarrowMerges& merges, const std::uint8_t* text,
                                std::size_t size, std::uint16_t* out) {
  if (size <= 9) return merge_parts<1>(merges, text, size, out);
  if (size <= 17) return merge_parts<2>(merges, text, size, out);
  return size <= 32 ? merge_parts<4>(merges, text, size, out) : merge_many(merges, text, size, out);
}

// BPE of words too long for one register, with ids and ranks of 16 bits. Included by the AVX-512
// kernel inside its own namespace.

// The lowest rank is searched in memory, 32 at a time, and symbols are linked to their neighbours.
inline std::size_t merge16_in_memory(const MergeTable16& merges, const std::uint8_t* text,
                                     std::size_t size, std::uint16_t* out) {
  constexpr std::uint32_t kNone = MergeTable16::kNone;
  alignas(64) std::uint16_t ranks[kMerge16Limit + 1];
  // One more symbol at either end, which merges with nothing, so that each has two neighbours.
  std::uint16_t symbols[kMerge16Limit + 2], products[kMerge16Limit + 2];
  std::uint16_t next[kMerge16Limit + 2], previous[kMerge16Limit + 2];
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
    const MergeTable16::Rule rule = merges.byte_pair(text[i], text[i + 1]);
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
    const MergeTable16::Rule with_after = merges.find(symbols[at], symbols[after]);
    ranks[at - 1] = static_cast<std::uint16_t>(with_after);
    products[at] = static_cast<std::uint16_t>(with_after >> 16);
    if (before == 0) continue;
    const MergeTable16::Rule with_before = merges.find(symbols[before], symbols[at]);
    ranks[before - 1] = static_cast<std::uint16_t>(with_before);
    products[before] = static_cast<std::uint16_t>(with_before >> 16);
  }
  std::size_t count = 0;
  for (std::size_t i = 1; i <= size; i = next[i]) out[count++] = symbols[i];
  return count;
}

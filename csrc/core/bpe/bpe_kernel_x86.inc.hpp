// What the x86 kernels share: keys hashed by two rounds of AES, slots copied whole, and the lowest
// of eight ranks. Included by each of them inside its own namespace.

struct X86Isa {
  static constexpr long long kRound[2] = {0x243F6A8885A308D3, 0x13198A2E03707344};

  static std::uint64_t mix(__m128i key) {
    const __m128i once = _mm_aesenc_si128(key, _mm_set1_epi64x(kRound[0]));
    return static_cast<std::uint64_t>(
        _mm_cvtsi128_si64(_mm_aesenc_si128(once, _mm_set1_epi64x(kRound[1]))));
  }

  static std::uint64_t hash(const WordKey& key) {
    return mix(_mm_load_si128(reinterpret_cast<const __m128i*>(key.bytes)));
  }

  static std::uint64_t load_key(const std::uint8_t* text, const std::uint8_t* keep,
                                const std::uint8_t* size, WordKey* key) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text));
    const __m128i kept =
        _mm_or_si128(_mm_and_si128(bytes, _mm_load_si128(reinterpret_cast<const __m128i*>(keep))),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(size)));
    _mm_store_si128(reinterpret_cast<__m128i*>(key->bytes), kept);
    return mix(kept);
  }

  template <class Id>
  static __m128i load_ids(const IdRow<Id>& ids) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(ids.bytes));
  }
  static void copy_ids(const IdRow<std::uint16_t>& ids, std::uint16_t* out) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), load_ids(ids));
  }
  static void copy_ids(const IdRow<std::uint16_t>& ids, std::int32_t* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_cvtepu16_epi32(load_ids(ids)));
  }
  static void copy_ids(const IdRow<std::uint32_t>& ids, std::int32_t* out) {
    const __m128i which = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(load_ids(ids), which));
  }
};

// The lowest of eight ranks in the high half, and its lane, counted from first_lane, in the low
// half.
inline std::uint32_t lowest_of_eight(__m128i ranks, unsigned first_lane) {
  const auto found = static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(ranks)));
  return (found << 16) + (found >> 16) + first_lane;
}

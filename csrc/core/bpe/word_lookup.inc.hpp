// Looking pretokens up in the word cache, a window at a time. Included by each kernel inside its
// own namespace, after a struct `Isa` of the instruction set's own operations:
//   load_key()   makes the key of a pretoken, and returns its hash; hash() is that of a key
//   four_keys()  (optional) makes the keys of four pretokens, and the addresses of their buckets
//   find()       finds the slot of a key in a bucket, or null
//   copy_ids()   copies kAtOnce ids of a row, and may write behind them
//   long_ones()  tells which of kLongBlock pretokens are longer than a key

// By size of a pretoken, which bytes of a 16-byte load are kept, and the size as the last byte. One
// of 16 bytes and more gets a key that no word has.
struct KeyMasks {
  alignas(16) std::uint8_t keep[17][16];
  alignas(16) std::uint8_t size[17][16];
};

constexpr KeyMasks make_key_masks() {
  KeyMasks masks{};
  for (std::size_t size = 0; size <= 16; ++size) {
    for (std::size_t i = 0; i < size && size < 16; ++i) masks.keep[size][i] = 0xFF;
    masks.size[size][15] = static_cast<std::uint8_t>(size < 16 ? size : 0xFF);
  }
  return masks;
}

inline constexpr KeyMasks kKeyMasks = make_key_masks();

// The ids of a row that Isa::copy_ids() copies.
template <class Id>
inline constexpr std::size_t kAtOnce = sizeof(Id) == 2 ? 7 : 4;

// Copies the other ids of a row.
template <class Id, class Out>
void copy_last(const IdRow<Id>& row, Out* out) {
  for (std::size_t i = kAtOnce<Id>; i < IdRow<Id>::kMax; ++i) out[i] = static_cast<Out>(row[i]);
}

// Writes the ids of a slot and returns their end. One store copies as many as it can, however many
// there are, which saves a branch. A slot with more ids than a row has them in the next slot, too.
template <class Id, class Out>
Out* emit(const WordSlot<Id>& slot, Out* out) {
  constexpr std::size_t kRow = IdRow<Id>::kMax;
  Isa::copy_ids(slot.ids, out);
  const std::size_t count = slot.count();
  if (count > kAtOnce<Id>) [[unlikely]] {
    copy_last(slot.ids, out);
    if (count <= kRow) return out + count;
    for (const std::size_t more : {1, 2}) {
      const IdRow<Id> row = WordBucket<Id>::row(slot, more);
      Isa::copy_ids(row, out + more * kRow);
      copy_last(row, out + more * kRow);
    }
  }
  return out + count;
}

// The same for a medium word: copies all ids that its bucket has room for.
template <class Id, class Out>
Out* emit(const MediumBucket<Id>& bucket, Out* out) {
  for (std::size_t i = 0; i < MediumBucket<Id>::kMaxIds; ++i) {
    out[i] = static_cast<Out>(bucket.ids[i]);
  }
  return out + bucket.count();
}

// BpeKernel::lookup*. Two passes: the first makes keys and prefetches their buckets, the second
// looks them up. So the latency of memory is waited for once a window, not once a pretoken.
template <class Id, class Out, class Set = Isa>
Out* lookup_window(Lookup<Id, Out>& cache, const std::uint8_t* text, const std::uint32_t* starts,
                   std::size_t count, Out* out) {
  alignas(64) WordKey keys[kMaxWindow];
  alignas(64) const WordBucket<Id>* buckets[kMaxWindow];
  std::size_t ready = 0;
  if constexpr (requires {
                  Set::four_keys(text, starts, keys, cache.buckets, cache.mask, buckets);
                }) {
    for (; ready + 4 <= count; ready += 4) {
      Set::four_keys(text, starts + ready, keys + ready, cache.buckets, cache.mask,
                     buckets + ready);
      for (std::size_t i = ready; i < ready + 4; ++i) __builtin_prefetch(buckets[i]);
    }
  }
  for (std::size_t i = ready; i < count; ++i) {
    const std::size_t size = starts[i + 1] - starts[i];
    const std::size_t row = size < 16 ? size : 16;
    const std::uint64_t hash =
        Isa::load_key(text + starts[i], kKeyMasks.keep[row], kKeyMasks.size[row], &keys[i]);
    buckets[i] = cache.buckets + (hash & cache.mask);
    __builtin_prefetch(buckets[i]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const WordSlot<Id>* slot = Isa::find(*buckets[i], keys[i]);
    if (slot == nullptr) [[unlikely]] {
      const std::size_t size = starts[i + 1] - starts[i];
      if (cache.probes != nullptr && MediumKey::fits(size)) {
        const MediumProbe& probe = *cache.probes++;
        const MediumBucket<Id>& bucket = cache.mediums[probe.home];
        if (bucket.key == probe.key) {
          out = emit(bucket, out);
          continue;
        }
      }
      out = cache.rare(cache.owner, text + starts[i], size, out);
      continue;
    }
    out = emit(*slot, out);
  }
  return out;
}

inline std::size_t find_long(const std::uint32_t* starts, std::size_t count, std::uint16_t* which) {
  std::size_t found = 0;
  for (std::size_t from = 0; from < count; from += kLongBlock) {
    unsigned ones = Isa::long_ones(starts + from);
    if (count - from < kLongBlock) ones &= (1u << (count - from)) - 1;
    for (; ones != 0; ones &= ones - 1) {
      which[found++] = static_cast<std::uint16_t>(from + std::countr_zero(ones));
    }
  }
  return found;
}

// The kernel of this instruction set; a merge that it does not have is null and has the limit 0.
constexpr BpeKernel make_kernel(std::size_t merge16_limit, Merge16* merge16,
                                std::size_t merge32_limit, Merge32* merge32) {
  return {find_long,
          Isa::hash,
          merge16_limit,
          merge16,
          merge32_limit,
          merge32,
          lookup_window<std::uint16_t, std::uint16_t>,
          lookup_window<std::uint16_t, std::int32_t>,
          lookup_window<std::uint32_t, std::int32_t>};
}

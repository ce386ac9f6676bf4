// Looking pretokens up in the word cache, a window at a time. Included by each kernel inside its
// own namespace, after a struct `Isa` of the instruction set's own operations: load_key() makes a
// key and its hash, hash() only the hash, find() finds the key in a bucket, copy_ids() copies the
// 16 bytes of ids of a slot, long_ones() compares sizes.

// Keeps the first `size` bytes of a 16-byte load and puts the size last; one row for each size. A
// pretoken of 16 bytes and more gets a key that no word has.
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

// Copies all ids of a slot whatever their number, which saves a branch. Ids that do not fit a slot
// are in the next one.
template <class Id, class Out>
Out* emit(const WordSlot<Id>& slot, Out* out) {
  Isa::copy_ids(slot.ids, out);
  const std::size_t count = slot.count();
  if (count > WordSlot<Id>::kMaxIds) [[unlikely]]
    Isa::copy_ids((&slot)[1].ids, out + WordSlot<Id>::kMaxIds);
  return out + count;
}

// Two passes: the first makes keys and asks for their cache lines, the second finds them there. So
// the latency of memory is paid once for a window, not once for a pretoken.
template <class Id, class Out>
Out* lookup_window(Lookup<Id, Out>& cache, const std::uint8_t* text, const std::uint32_t* starts,
                   std::size_t count, Out* out) {
  alignas(64) WordKey keys[kMaxWindow];
  const WordBucket<Id>* buckets[kMaxWindow];
  for (std::size_t i = 0; i < count; ++i) {
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
      const auto* generation = cache.buckets;
      out = cache.rare(cache.owner, text + starts[i], starts[i + 1] - starts[i], out);
      if (cache.buckets != generation) [[unlikely]] {
        // The cache has grown and moved.
        for (std::size_t j = i + 1; j < count; ++j) {
          buckets[j] = cache.buckets + (Isa::hash(keys[j]) & cache.mask);
        }
      }
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

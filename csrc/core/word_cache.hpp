// Caches from pretokens to ids. They only remember: losing an entry costs time, never correctness.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "core/huge_array.hpp"

namespace tokpack {

// The bytes of a pretoken of at most 15 bytes, zero-padded, with its length in the last byte. Two
// keys are equal exactly when the pretokens are, so no hit is ever a guess.
struct alignas(16) WordKey {
  static constexpr std::size_t kMaxSize = 15;
  std::uint8_t bytes[16];

  // REQUIRES: size <= kMaxSize.
  static WordKey of(const std::uint8_t* text, std::size_t size) {
    WordKey key{};
    std::memcpy(key.bytes, text, size);
    key.bytes[15] = static_cast<std::uint8_t>(size);
    return key;
  }

  friend bool operator==(const WordKey& a, const WordKey& b) {
    return std::memcmp(a.bytes, b.bytes, 16) == 0;
  }
  std::size_t size() const { return bytes[15]; }
  bool empty() const { return bytes[15] == 0; }
};

// A pretoken and its ids; `count` is the last field so that one 16-byte load brings ids and count.
template <class Id>
struct alignas(32) WordSlot {
  static constexpr std::size_t kMaxIds = 16 / sizeof(Id) - 1;
  WordKey key;
  Id ids[kMaxIds];
  Id count;
};

// One cache line.
template <class Id>
struct alignas(64) WordBucket {
  WordSlot<Id> slots[2];
};
static_assert(sizeof(WordBucket<std::uint16_t>) == 64 && sizeof(WordBucket<std::uint32_t>) == 64);

// Two-slot buckets; a word lives in its own bucket or, when that is full, in the neighbouring one.
// Grows to `max_bytes`; then new words replace old ones.
template <class Id>
class WordCache {
 public:
  using Slot = WordSlot<Id>;
  using Bucket = WordBucket<Id>;

  WordCache(std::size_t initial_bytes, std::size_t max_bytes)
      : buckets_(initial_bytes / sizeof(Bucket)), max_buckets_(max_bytes / sizeof(Bucket)) {}

  const Bucket* buckets() const { return buckets_.data(); }
  std::size_t bucket_count() const { return buckets_.size(); }
  std::uint64_t mask() const { return buckets_.size() - 1; }
  std::size_t words() const { return words_; }

  // A word that is not in its own bucket as it should be: in the neighbouring bucket (then the two
  // are swapped, so that the fast path finds it the next time), known to be elsewhere, or new.
  struct Found {
    const Slot* slot;
    bool elsewhere;
  };
  Found find_displaced(const WordKey& key, std::uint64_t hash) {
    const WordKey mark = marked(key);
    Bucket& home = buckets_[hash & mask()];
    for (const Slot& slot : home.slots) {
      if (slot.key == mark) return {nullptr, true};
      if (slot.key.empty()) return {nullptr, false};
    }
    Bucket& other = buckets_[(hash & mask()) ^ 1];
    for (Slot& slot : other.slots) {
      if (slot.key == mark) return {nullptr, true};
      if (!(slot.key == key)) continue;
      Slot& victim = home.slots[++turn_ & 1];
      std::swap(slot, victim);
      return {&victim, false};
    }
    return {nullptr, false};
  }

  // Hash recomputes a key's hash, for growing.
  template <class Hash>
  void insert(const WordKey& key, std::uint64_t hash, const std::uint32_t* ids, std::size_t count,
              Hash&& rehash) {
    Slot slot;
    slot.key = key;
    for (std::size_t i = 0; i < Slot::kMaxIds; ++i) {
      slot.ids[i] = i < count ? static_cast<Id>(ids[i]) : Id{0};
    }
    slot.count = static_cast<Id>(count);
    add(slot, hash, rehash);
  }

  // Remembers that the word's ids are elsewhere.
  template <class Hash>
  void insert_mark(const WordKey& key, std::uint64_t hash, Hash&& rehash) {
    add(Slot{marked(key), {}, 0}, hash, rehash);
  }

 private:
  // No word has this key.
  static WordKey marked(WordKey key) {
    key.bytes[15] |= 0x80;
    return key;
  }

  template <class Hash>
  void add(const Slot& slot, std::uint64_t hash, Hash&& rehash) {
    if (words_ * 5 > buckets_.size() * 3 && buckets_.size() < max_buckets_) {
      grow([&](WordKey key) {
        key.bytes[15] &= 0x7F;
        return rehash(key);
      });
    }
    place(slot, hash);
  }

  void place(const Slot& slot, std::uint64_t hash) {
    const std::uint64_t home = hash & mask();
    for (const std::uint64_t at : {home, home ^ 1}) {
      for (Slot& candidate : buckets_[at].slots) {
        if (candidate.key.empty()) {
          candidate = slot;
          ++words_;
          return;
        }
      }
    }
    buckets_[home].slots[++turn_ & 1] = slot;
  }

  template <class Hash>
  void grow(Hash&& rehash) {
    HugeArray<Bucket> old(buckets_.size() * 2);
    std::swap(old, buckets_);
    words_ = 0;
    for (std::size_t b = 0; b < old.size(); ++b) {
      for (const Slot& slot : old[b].slots) {
        if (!slot.key.empty()) place(slot, rehash(slot.key));
      }
    }
  }

  HugeArray<Bucket> buckets_;
  std::size_t max_buckets_;
  std::size_t words_ = 0;
  unsigned turn_ = 0;
};

// Pretokens that do not fit a slot: longer than 15 bytes, or with more ids than a slot holds. Bytes
// and ids live in an arena; when it is full everything is forgotten.
class LongWordCache {
 public:
  static constexpr std::size_t kMaxSize = 256;  // of a word, in bytes

  LongWordCache()
      : entries_(kFirstEntries),
        arena_(std::make_unique_for_overwrite<std::uint32_t[]>(kArenaWords)) {}

  static std::uint64_t hash(const std::uint8_t* text, std::size_t size) {
    std::uint64_t h = size * 0x9E3779B97F4A7C15ull;
    for (; size >= 8; text += 8, size -= 8) {
      std::uint64_t word;
      std::memcpy(&word, text, 8);
      h = (std::rotl(h, 23) ^ word) * 0xBF58476D1CE4E5B9ull;
    }
    std::uint64_t word = 0;
    std::memcpy(&word, text, size);
    h = (std::rotl(h, 23) ^ word) * 0xBF58476D1CE4E5B9ull;
    h ^= h >> 32;
    h *= 0x94D049BB133111EBull;
    return h ^ h >> 29;
  }

  // The ids of the word and their number in *count, or nothing.
  const std::uint32_t* find(const std::uint8_t* text, std::size_t size, std::uint64_t hash,
                            std::size_t* count) const {
    for (std::uint64_t at = hash & mask();; at = (at + 1) & mask()) {
      const Entry& entry = entries_[at];
      if (entry.size == 0) return nullptr;
      if (entry.hash == hash && entry.size == size &&
          std::memcmp(&arena_[entry.begin + entry.count], text, size) == 0) {
        *count = entry.count;
        return &arena_[entry.begin];
      }
    }
  }

  void insert(const std::uint8_t* text, std::size_t size, std::uint64_t hash,
              const std::uint32_t* ids, std::size_t count) {
    const std::size_t words = count + (size + 3) / 4;
    if (used_ + words > kArenaWords) clear();
    if (++words_ * 2 > entries_.size()) grow();
    place({hash, static_cast<std::uint32_t>(used_), static_cast<std::uint16_t>(size),
           static_cast<std::uint16_t>(count)});
    std::memcpy(&arena_[used_], ids, count * sizeof(std::uint32_t));
    std::memcpy(&arena_[used_ + count], text, size);
    used_ += words;
  }

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t begin;  // in the arena: the ids, then the bytes
    std::uint16_t size;   // bytes; 0 for a free entry
    std::uint16_t count;  // ids
  };
  static constexpr std::size_t kFirstEntries = std::size_t{1} << 15;
  static constexpr std::size_t kArenaWords = std::size_t{8} << 20;  // touched only as it fills

  std::uint64_t mask() const { return entries_.size() - 1; }

  void place(const Entry& entry) {
    std::uint64_t at = entry.hash & mask();
    while (entries_[at].size != 0) at = (at + 1) & mask();
    entries_[at] = entry;
  }

  void grow() {
    HugeArray<Entry> old(entries_.size() * 2);
    std::swap(old, entries_);
    for (std::size_t i = 0; i < old.size(); ++i) {
      if (old[i].size != 0) place(old[i]);
    }
  }

  void clear() {
    entries_ = HugeArray<Entry>(kFirstEntries);
    used_ = 0;
    words_ = 0;
  }

  HugeArray<Entry> entries_;
  std::unique_ptr<std::uint32_t[]> arena_;
  std::size_t used_ = 0;
  std::size_t words_ = 0;
};

}  // namespace tokpack

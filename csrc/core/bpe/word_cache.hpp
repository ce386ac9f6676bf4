// Caches from pretokens to ids. They only remember: losing an entry costs time, never correctness.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "core/base/huge_array.hpp"
#include "core/base/prefetch.hpp"

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

// Ids in 16 bytes, for one load: 7 of 16 bits, or 5 of 24. The last byte is for something else.
template <class Id>
struct alignas(16) IdRow {
  static constexpr std::size_t kIdBytes = sizeof(Id) == 2 ? 2 : 3;
  static constexpr std::size_t kMax = 15 / kIdBytes;
  std::uint8_t bytes[16];

  Id operator[](std::size_t i) const {
    std::uint32_t id = 0;
    for (std::size_t b = 0; b < kIdBytes; ++b) id |= bytes[i * kIdBytes + b] << 8 * b;
    return static_cast<Id>(id);
  }
  void set(std::size_t i, std::uint32_t id) {
    for (std::size_t b = 0; b < kIdBytes; ++b) {
      bytes[i * kIdBytes + b] = static_cast<std::uint8_t>(id >> 8 * b);
    }
  }
};

// A pretoken and its ids, and in the row's last byte their number.
template <class Id>
struct alignas(32) WordSlot {
  static constexpr std::size_t kMaxIds = IdRow<Id>::kMax;
  WordKey key;
  IdRow<Id> ids;

  std::size_t count() const { return ids.bytes[15]; }
};

// One cache line: two words, or one word with more ids than a slot holds. Then the second slot has
// two more rows of its ids, one in place of a key; no word has such a key.
template <class Id>
struct alignas(64) WordBucket {
  static constexpr std::size_t kMaxIds = 3 * IdRow<Id>::kMax;
  static constexpr std::uint8_t kRest = 0xFE;  // the last byte of that key
  WordSlot<Id> slots[2];

  // REQUIRES: count <= kMaxIds, ids of as many bits as a row holds.
  static WordBucket of(const WordKey& key, const std::uint32_t* ids, std::size_t count) {
    IdRow<Id> rows[3] = {};
    for (std::size_t i = 0; i < std::min(count, kMaxIds); ++i) {  // a bound that compilers see
      rows[i / IdRow<Id>::kMax].set(i % IdRow<Id>::kMax, ids[i]);
    }
    rows[0].bytes[15] = static_cast<std::uint8_t>(count);
    WordBucket line{};
    line.slots[0] = {key, rows[0]};
    if (count > IdRow<Id>::kMax) {
      rows[1].bytes[15] = kRest;
      std::memcpy(line.slots[1].key.bytes, rows[1].bytes, sizeof rows[1]);
      line.slots[1].ids = rows[2];
    }
    return line;
  }

  // Row 0, 1 or 2 of the ids of a word; the last two only where it has so many.
  static IdRow<Id> row(const WordSlot<Id>& slot, std::size_t which) {
    if (which == 0) return slot.ids;
    if (which == 2) return (&slot)[1].ids;
    IdRow<Id> in_key;
    std::memcpy(in_key.bytes, (&slot)[1].key.bytes, sizeof in_key);
    return in_key;
  }

  // Writes all ids of a slot and returns their end.
  template <class Out>
  static Out* copy_ids(const WordSlot<Id>& slot, Out* out) {
    constexpr std::size_t kRow = IdRow<Id>::kMax;
    for (std::size_t i = 0; i < slot.count(); ++i) {
      *out++ = static_cast<Out>(row(slot, i / kRow)[i % kRow]);
    }
    return out;
  }

  bool is_empty() const { return slots[0].key.empty() && slots[1].key.empty(); }
  bool is_full() const { return !slots[0].key.empty() && !slots[1].key.empty(); }
  bool holds_one_word() const { return slots[1].key.bytes[15] == kRest; }
};
static_assert(sizeof(WordBucket<std::uint16_t>) == 64 && sizeof(WordBucket<std::uint32_t>) == 64);

// A word is in its own bucket or, when that is full, in the neighbouring one. When both are full,
// new words replace old ones.
template <class Id>
class WordCache {
 public:
  using Slot = WordSlot<Id>;
  using Bucket = WordBucket<Id>;

  // REQUIRES: a power of two, at least two buckets.
  explicit WordCache(std::size_t bytes) : buckets_(bytes / sizeof(Bucket)) {}

  void make_huge() { buckets_.make_huge(); }
  const Bucket* buckets() const { return buckets_.data(); }
  std::size_t bucket_count() const { return buckets_.size(); }
  std::uint64_t mask() const { return buckets_.size() - 1; }
  std::size_t words() const { return words_; }

  // Looks for a word that is not in its own bucket. If it is in the neighbouring one it is moved to
  // its own where possible, so that the kernel finds it the next time.
  struct Found {
    const Slot* slot;  // null: its ids are not in this cache
    bool elsewhere;    // a mark says that they were too many: look in the cache of long words
  };
  Found find_displaced(const WordKey& key, std::uint64_t hash) {
    const WordKey mark = marked(key);
    Bucket& home = buckets_[hash & mask()];
    Bucket& other = buckets_[(hash & mask()) ^ 1];
    for (const Slot& slot : home.slots) {
      // A word that takes the whole other bucket has left a mark here, if there was room.
      if (slot.key == mark) return {other.slots[0].key == key ? &other.slots[0] : nullptr, true};
      if (slot.key.empty()) return {nullptr, false};
    }
    for (Slot& slot : other.slots) {
      if (slot.key == mark) return {nullptr, true};
      if (!(slot.key == key)) continue;
      if (home.holds_one_word() || other.holds_one_word()) return {&slot, false};
      Slot& victim = home.slots[++turn_ & 1];
      std::swap(slot, victim);
      return {&victim, false};
    }
    return {nullptr, false};
  }

  // Enters a word, or a mark that its ids are elsewhere when there are too many.
  void insert(const WordKey& key, std::uint64_t hash, const std::uint32_t* ids, std::size_t count) {
    if (count <= Bucket::kMaxIds) {
      const auto line = Bucket::of(key, ids, count);
      if (count <= Slot::kMaxIds) return place(line.slots[0], hash);
      if (place_as_bucket(line, hash)) return;
    }
    place({marked(key), {}}, hash);
  }

 private:
  // The key of a word's mark. No word has this key.
  static WordKey marked(WordKey key) {
    key.bytes[15] |= 0x80;
    return key;
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
    Bucket& full = buckets_[home];
    if (full.holds_one_word()) {
      full.slots[0] = slot;
      full.slots[1] = {};
    } else {
      full.slots[++turn_ & 1] = slot;
    }
  }

  // False when neither bucket is free.
  bool place_as_bucket(const Bucket& line, std::uint64_t hash) {
    Bucket& home = buckets_[hash & mask()];
    Bucket& other = buckets_[(hash & mask()) ^ 1];
    if (!home.is_empty() && !other.is_empty()) return false;
    (home.is_empty() ? home : other) = line;
    ++words_;
    if (!home.is_full()) place({marked(line.slots[0].key), {}}, hash);
    return true;
  }

  HugeArray<Bucket> buckets_;
  std::size_t words_ = 0;
  unsigned turn_ = 0;
};

// Pretokens that do not fit a bucket: of more than 15 bytes, or of more ids than a bucket holds.
// Bytes and ids are in an arena; when it is full, or half of the entries are, everything is
// forgotten.
class LongWordCache {
 public:
  static constexpr std::size_t kMaxSize = 256;  // of a word, in bytes

  LongWordCache()
      : entries_(kEntries), arena_(std::make_unique_for_overwrite<std::uint32_t[]>(kArenaWords)) {}

  void make_huge() { entries_.make_huge(); }

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

  // Prefetches the entry of a word; later, when the entry has come, its ids and bytes.
  void prefetch(std::uint64_t hash) const { tokpack::prefetch(&entries_[hash & kMask]); }
  void prefetch_word(std::uint64_t hash) const {
    const std::uint32_t* word = arena_.get() + entries_[hash & kMask].begin;
    tokpack::prefetch(word);
    tokpack::prefetch(word + 16);
  }

  // The ids of a word, and their number in *count; null for a word that is not there.
  const std::uint32_t* find(const std::uint8_t* text, std::size_t size, std::uint64_t hash,
                            std::size_t* count) const {
    for (std::uint64_t at = hash & kMask;; at = (at + 1) & kMask) {
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
    if (used_ + words > kArenaWords || words_ * 2 >= kEntries) clear();
    ++words_;
    std::uint64_t at = hash & kMask;
    while (entries_[at].size != 0) at = (at + 1) & kMask;
    entries_[at] = {hash, static_cast<std::uint32_t>(used_), static_cast<std::uint16_t>(size),
                    static_cast<std::uint16_t>(count)};
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
  static constexpr std::size_t kEntries = std::size_t{1} << 18;
  static constexpr std::uint64_t kMask = kEntries - 1;
  static constexpr std::size_t kArenaWords = std::size_t{8} << 20;  // touched only as it fills

  void clear() {
    entries_ = HugeArray<Entry>(kEntries);
    used_ = 0;
    words_ = 0;
  }

  HugeArray<Entry> entries_;
  std::unique_ptr<std::uint32_t[]> arena_;
  std::size_t used_ = 0;
  std::size_t words_ = 0;
};

}  // namespace tokpack

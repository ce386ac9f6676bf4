// The cache of pretokens that are too long for a key of the word cache, but not by much: of 16 to
// 31 bytes. Losing an entry costs time, never correctness.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/base/huge_array.hpp"
#include "core/base/load.hpp"
#include "core/base/prefetch.hpp"

namespace tokpack {

// The first and the last 16 bytes of a pretoken. They overlap by at least one byte, so that the
// first byte of the second half is known from the first half; the size is in its place. Two keys
// are equal exactly when the pretokens are.
struct MediumKey {
  static constexpr std::size_t kMinSize = 16, kMaxSize = 31;
  std::uint64_t words[4];

  // REQUIRES: kMinSize <= size <= kMaxSize.
  static MediumKey of(const std::uint8_t* text, std::size_t size) {
    const std::uint64_t third = load<std::uint64_t>(text + size - 16);
    return {{load<std::uint64_t>(text), load<std::uint64_t>(text + 8),
             (third & ~std::uint64_t{0xFF}) | size, load<std::uint64_t>(text + size - 8)}};
  }
  static bool fits(std::size_t size) { return size - kMinSize <= kMaxSize - kMinSize; }

  // No key of a pretoken is empty.
  bool empty() const { return words[2] == 0; }
  bool operator==(const MediumKey& other) const {
    return ((words[0] ^ other.words[0]) | (words[1] ^ other.words[1]) |
            (words[2] ^ other.words[2]) | (words[3] ^ other.words[3])) == 0;
  }

  std::uint64_t hash() const {
    constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ull;
    std::uint64_t h = (words[0] ^ std::rotl(words[1] * kOdd, 29)) * 0xBF58476D1CE4E5B9ull;
    h ^= (words[2] ^ std::rotl(words[3] * kOdd, 29)) * 0x94D049BB133111EBull;
    h = (h ^ h >> 32) * kOdd;
    return h ^ h >> 32;
  }
};

// A pretoken and its ids, in two cache lines. An empty one is all zeros.
template <class Id>
struct alignas(64) MediumBucket {
  static constexpr std::size_t kMaxIds = 96 / sizeof(Id) - 1;
  MediumKey key;
  Id ids[kMaxIds + 1];  // the last one is their number

  std::size_t count() const { return ids[kMaxIds]; }
};
static_assert(sizeof(MediumBucket<std::uint16_t>) == 128);
static_assert(sizeof(MediumBucket<std::uint32_t>) == 128);

// A pretoken that is going to be looked up.
struct MediumProbe {
  MediumKey key;
  std::uint64_t home;  // number of its bucket
};

// A pretoken is in its own bucket or in the neighbouring one; new pretokens replace old ones.
template <class Id>
class MediumWordCache {
 public:
  using Bucket = MediumBucket<Id>;

  // REQUIRES: a power of two.
  explicit MediumWordCache(std::size_t bytes)
      : buckets_(std::max<std::size_t>(2, bytes / sizeof(Bucket))) {}

  void make_huge() { buckets_.make_huge(); }
  const Bucket* buckets() const { return buckets_.data(); }

  // Computes the key of a pretoken, and prefetches its bucket.
  MediumProbe probe(const std::uint8_t* text, std::size_t size) const {
    const MediumKey key = MediumKey::of(text, size);
    const std::uint64_t home = key.hash() & (buckets_.size() - 1);
    prefetch(&buckets_[home]);
    prefetch(reinterpret_cast<const std::uint8_t*>(&buckets_[home]) + 64);
    return {key, home};
  }

  // The bucket of a pretoken, or null. From the neighbouring bucket it is moved to its own.
  const Bucket* find(const MediumKey& key) {
    const std::uint64_t at = key.hash() & (buckets_.size() - 1);
    if (buckets_[at].key == key) return &buckets_[at];
    if (!(buckets_[at ^ 1].key == key)) return nullptr;
    std::swap(buckets_[at], buckets_[at ^ 1]);
    return &buckets_[at];
  }

  // REQUIRES: find() has not found it. Nothing happens when a bucket cannot hold the ids.
  template <class Out>
  void insert(const MediumKey& key, const Out* ids, std::size_t count) {
    if (count > Bucket::kMaxIds) return;
    Bucket bucket{key, {}};
    std::transform(ids, ids + count, bucket.ids, [](Out id) { return static_cast<Id>(id); });
    bucket.ids[Bucket::kMaxIds] = static_cast<Id>(count);
    place(bucket);
  }

 private:
  // The pretoken that was in the bucket moves to the neighbouring one, as the new one is likely to
  // be looked up more often.
  void place(const Bucket& bucket) {
    Bucket& home = buckets_[bucket.key.hash() & (buckets_.size() - 1)];
    Bucket& other = buckets_[(&home - buckets_.data()) ^ 1];
    if (!home.key.empty()) other = home;
    home = bucket;
  }

  HugeArray<Bucket> buckets_;
};

}  // namespace tokpack

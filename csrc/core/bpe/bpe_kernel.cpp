// The kernel for any processor, and the choice among all.
#include "core/bpe/bpe_kernel.hpp"

#include <bit>
#include <cstring>

namespace tokpack {
namespace {

struct Isa {
  static std::uint64_t hash(const WordKey& key) {
    std::uint64_t low, high;
    std::memcpy(&low, key.bytes, 8);
    std::memcpy(&high, key.bytes + 8, 8);
    return hash_words(low, high);
  }

  static std::uint64_t load_key(const std::uint8_t* text, const std::uint8_t* keep,
                                const std::uint8_t* size, WordKey* key) {
    for (std::size_t i = 0; i < 16; ++i) {
      key->bytes[i] = static_cast<std::uint8_t>((text[i] & keep[i]) | size[i]);
    }
    return hash(*key);
  }

  template <class Id>
  static const WordSlot<Id>* find(const WordBucket<Id>& bucket, const WordKey& key) {
    for (const WordSlot<Id>& slot : bucket.slots) {
      if (slot.key == key) return &slot;
    }
    return nullptr;
  }

  // Bit i: pretoken i is longer than a key.
  static unsigned long_ones(const std::uint32_t* starts) {
    unsigned found = 0;
    for (unsigned i = 0; i < kLongBlock; ++i) {
      found |= unsigned{starts[i + 1] - starts[i] > WordKey::kMaxSize} << i;
    }
    return found;
  }

  template <class Id, class Out>
  static void copy_ids(const IdRow<Id>& ids, Out* out) {
    for (std::size_t i = 0; i < (sizeof(Id) == 2 ? 7 : 4); ++i) out[i] = static_cast<Out>(ids[i]);
  }
};

#include "core/bpe/word_lookup.inc.hpp"

}  // namespace

#if defined(__x86_64__)
const BpeKernel& bpe_kernel_avx2();
const BpeKernel& bpe_kernel_avx512();
#elif defined(__AARCH64EL__)
const BpeKernel& bpe_kernel_neon();
#endif

const BpeKernel& bpe_kernel([[maybe_unused]] Level level) {
#if defined(__x86_64__)
  if (level == Level::kAvx512) return bpe_kernel_avx512();
  if (level == Level::kAvx2) return bpe_kernel_avx2();
#elif defined(__AARCH64EL__)
  if (level == Level::kNeon) return bpe_kernel_neon();
#endif
  static constexpr BpeKernel scalar = make_kernel(0, nullptr, 0, nullptr);
  return scalar;
}

}  // namespace tokpack

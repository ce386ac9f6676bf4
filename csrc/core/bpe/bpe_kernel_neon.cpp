// The kernel of the encoder for NEON.
#if defined(__AARCH64EL__)

#include <arm_neon.h>

#include <algorithm>
#include <bit>

#include "core/base/load.hpp"
#include "core/base/mask_neon.hpp"
#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/word_cache.hpp"

namespace tokpack {
namespace {

struct Isa {
  static std::uint64_t hash(const WordKey& key) {
    return hash_words(load<std::uint64_t>(key.bytes), load<std::uint64_t>(key.bytes + 8));
  }

  static std::uint64_t load_key(const std::uint8_t* text, const std::uint8_t* keep,
                                const std::uint8_t* size, WordKey* key) {
    const uint8x16_t kept = vorrq_u8(vandq_u8(vld1q_u8(text), vld1q_u8(keep)), vld1q_u8(size));
    vst1q_u8(key->bytes, kept);
    const uint64x2_t words = vreinterpretq_u64_u8(kept);
    return hash_words(vgetq_lane_u64(words, 0), vgetq_lane_u64(words, 1));
  }

  template <class Id>
  static const WordSlot<Id>* find(const WordBucket<Id>& bucket, const WordKey& key) {
    // Not with vectors: their comparison would have to be moved to ordinary registers for the
    // branch.
    const auto low = load<std::uint64_t>(key.bytes), high = load<std::uint64_t>(key.bytes + 8);
    const auto equal = [=](const WordSlot<Id>& slot) {
      return ((load<std::uint64_t>(slot.key.bytes) ^ low) |
              (load<std::uint64_t>(slot.key.bytes + 8) ^ high)) == 0;
    };
    const bool first = equal(bucket.slots[0]);
    const bool second = equal(bucket.slots[1]);
    if (!(first | second)) [[unlikely]]
      return nullptr;
    return &bucket.slots[second];
  }

  // Bit i: pretoken i is longer than a key.
  static unsigned long_ones(const std::uint32_t* starts) {
    const auto four = [=](unsigned at) {
      const uint32x4_t size = vsubq_u32(vld1q_u32(starts + at + 1), vld1q_u32(starts + at));
      return vreinterpretq_u16_u32(vcgtq_u32(size, vdupq_n_u32(WordKey::kMaxSize)));
    };
    const uint8x16_t all = vuzp1q_u8(vreinterpretq_u8_u16(vuzp1q_u16(four(0), four(4))),
                                     vreinterpretq_u8_u16(vuzp1q_u16(four(8), four(12))));
    return mask_neon(all, all) & 0xFFFF;
  }

  static void copy_ids(const IdRow<std::uint16_t>& ids, std::uint16_t* out) {
    vst1q_u16(out, vreinterpretq_u16_u8(vld1q_u8(ids.bytes)));
  }
  static void copy_ids(const IdRow<std::uint16_t>& ids, std::int32_t* out) {
    const uint16x8_t all = vreinterpretq_u16_u8(vld1q_u8(ids.bytes));
    vst1q_s32(out, vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(all))));
    vst1q_s32(out + 4, vreinterpretq_s32_u32(vmovl_high_u16(all)));
  }
  static void copy_ids(const IdRow<std::uint32_t>& ids, std::int32_t* out) {
    constexpr uint8x16_t kFour = {0, 1, 2, 255, 3, 4, 5, 255, 6, 7, 8, 255, 9, 10, 11, 255};
    vst1q_s32(out, vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(ids.bytes), kFour)));
  }
};

#include "core/bpe/word_lookup.inc.hpp"

struct Merge32Isa {
  using Lanes = uint32x4_t;
  static constexpr unsigned kLanes = 4;

  static Lanes iota(unsigned first) { return vaddq_u32(Lanes{0, 1, 2, 3}, vdupq_n_u32(first)); }
  static Lanes load(const std::uint32_t* lanes) { return vld1q_u32(lanes); }
  static Lanes shift_left(Lanes lanes) { return vshlq_n_u32(lanes, 5); }
  static Lanes either(Lanes a, Lanes b) { return vorrq_u32(a, b); }
  static Lanes all(std::uint32_t value) { return vdupq_n_u32(value); }
  static Lanes least(Lanes a, Lanes b) { return vminq_u32(a, b); }
  static Lanes choose(std::uint32_t bits, Lanes then, Lanes otherwise) {
    return vbslq_u32(vtstq_u32(vdupq_n_u32(bits), Lanes{1, 2, 4, 8}), then, otherwise);
  }
  static std::uint32_t lowest(Lanes lanes) { return vminvq_u32(lanes); }
  static void store_kept(const std::uint32_t* symbols, std::uint64_t alive, std::uint32_t* out) {
    for (; alive != 0; alive &= alive - 1) *out++ = symbols[std::countr_zero(alive)];
  }
};

#include "core/bpe/merge32.inc.hpp"

}  // namespace

// merge32 serves vocabularies with ids of 16 bits as well.
const BpeKernel& bpe_kernel_neon() {
  static constexpr BpeKernel kernel = make_kernel(0, nullptr, kMerge32Limit, merge32);
  return kernel;
}

}  // namespace tokpack

#endif  // defined(__AARCH64EL__)

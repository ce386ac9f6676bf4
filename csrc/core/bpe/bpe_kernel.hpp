// The inner loops of the encoder, once for each instruction set: look pretokens up in the word
// cache, and merge the bytes of those that are not there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/cpu.hpp"
#include "core/bpe/first_symbols.hpp"
#include "core/bpe/medium_word_cache.hpp"
#include "core/bpe/merge_table_16bit.hpp"
#include "core/bpe/merge_table_32bit.hpp"
#include "core/bpe/word_cache.hpp"
#include "core/pretokenize/scan.hpp"

namespace tokpack {

// What a lookup works on. Id is the type of ids in the caches, Out their type in the output.
template <class Id, class Out>
struct Lookup {
  const WordBucket<Id>* buckets;    // of the word cache
  std::uint64_t mask;               // their number minus one
  const MediumBucket<Id>* mediums;  // of the cache of medium words
  const MediumProbe* probes;        // one for each medium pretoken, in order; or null
  // Encodes a pretoken that is in neither cache: writes its ids and returns their end.
  void* owner;
  Out* (*rare)(void* owner, const std::uint8_t* text, std::size_t size, Out* out);
};

inline constexpr std::size_t kLongBlock = 16;      // pretokens whose sizes are compared together
inline constexpr std::size_t kMerge16Limit = 255;  // the largest merge16_limit of a kernel
inline constexpr std::size_t kKeySlack = 48;       // bytes readable from the start of a pretoken on
inline constexpr std::size_t kOutputSlack = 256;   // bytes writable after the last id

// The hash of a key, given as two words, for levels without AES.
inline std::uint64_t hash_words(std::uint64_t low, std::uint64_t high) {
  std::uint64_t h = (low ^ (high * 0x9E3779B97F4A7C15ull)) * 0xBF58476D1CE4E5B9ull;
  h ^= h >> 32;
  h *= 0x94D049BB133111EBull;
  return h ^ h >> 29;
}

// BPE of one word: writes its ids to `out` and returns their number.
using Merge16 = std::size_t(const MergeTable16& merges, const std::uint8_t* text, std::size_t size,
                            std::uint16_t* out);
using Merge32 = std::size_t(const MergeTable32& merges, const FirstSymbols& first,
                            const std::uint8_t* text, std::size_t size, std::uint32_t* out);

struct BpeKernel {
  // Writes to `which` the numbers of the pretokens that are longer than a key, and returns how many
  // these are. `which` has room for `count`; kLongBlock entries behind the last start are readable.
  std::size_t (*find_long)(const std::uint32_t* starts, std::size_t count, std::uint16_t* which);

  std::uint64_t (*hash)(const WordKey& key);

  // For vocabularies of 16 bits, and words of 2 to merge16_limit bytes, of which kKeySlack bytes
  // are readable. `out` has room for kMerge16Limit ids. Other words are for BpeModel::encode().
  std::size_t merge16_limit;
  Merge16* merge16;

  // The same for any vocabulary. `out` has room for an id for each byte, and kOutputSlack bytes.
  std::size_t merge32_limit;
  Merge32* merge32;

  // Encodes the pretokens text[starts[i], starts[i + 1]) for i in [0, count), count <=
  // kMaxWindow. Returns the new end of the output.
  std::uint16_t* (*lookup16)(Lookup<std::uint16_t, std::uint16_t>& cache, const std::uint8_t* text,
                             const std::uint32_t* starts, std::size_t count, std::uint16_t* out);
  std::int32_t* (*lookup16to32)(Lookup<std::uint16_t, std::int32_t>& cache,
                                const std::uint8_t* text, const std::uint32_t* starts,
                                std::size_t count, std::int32_t* out);
  std::int32_t* (*lookup32)(Lookup<std::uint32_t, std::int32_t>& cache, const std::uint8_t* text,
                            const std::uint32_t* starts, std::size_t count, std::int32_t* out);
};

// The kernel of a level. REQUIRES: this machine has the level.
const BpeKernel& bpe_kernel(Level level);

}  // namespace tokpack

// The two inner loops of the encoder, once for each instruction set: cut text into pretokens, and
// look pretokens up in the word cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/cpu.hpp"
#include "core/bpe/merge_table_16bit.hpp"
#include "core/bpe/word_cache.hpp"
#include "core/pretokenize/pretokenize.hpp"

namespace tokpack {

// Where a scan of one text stands between two calls.
struct Gpt2Scan {
  const std::uint8_t* text;
  std::size_t size;
  // Runs of 2 to this many spaces are tokens of their own, longest first (GPT-NeoX's added tokens);
  // 0 when spaces are nothing special.
  std::size_t longest_run;

  // Masks of 64 bytes: bit i is byte `begin` + i. Bytes after the end of the text count as space.
  struct Block {
    std::uint64_t letter = 0, number = 0, space = 0, blank = 0, apostrophe = 0;
    std::uint64_t high = 0, lead = 0;                // bytes above 0x7F, and above 0xBF
    std::uint64_t wide_space2 = 0, wide_space3 = 0;  // first bytes of whitespace of 2 and 3 bytes
  };
  std::size_t begin = 0;  // of `current`, the block that is classified but not yet cut
  bool started = false;
  Block current;
  // Of the last byte of the block before: its class, in bit 0.
  std::uint64_t letter = 0, number = 0, other = 0, space = 0, blank = 0, spaces = 0, any_blank = 0;
  std::uint64_t set = 0, clear = 0;  // starts that a contraction moved into `current`
  std::size_t run = 0;               // length of the run of spaces before `current`
  // Bytes of a character that reach into the block to classify next.
  std::uint64_t spill_letter = 0, spill_number = 0, spill_space = 0;
};

// What a lookup works on. `rare` is asked about a pretoken that is not in its bucket: it writes the
// ids and returns the new end of the output.
template <class Id, class Out>
struct Lookup {
  const WordBucket<Id>* buckets;
  std::uint64_t mask;
  void* owner;
  Out* (*rare)(void* owner, const std::uint8_t* text, std::size_t size, Out* out);
};

inline constexpr std::size_t kWindow = 256;  // pretokens looked up together, as a rule
inline constexpr std::size_t kMaxWindow = kWindow + 128;
inline constexpr std::size_t kLongBlock = 16;    // pretokens whose sizes are compared together
inline constexpr std::size_t kMaxNarrow = 255;   // no longest_narrow is more
inline constexpr std::size_t kKeySlack = 48;     // bytes readable from the start of a pretoken on
inline constexpr std::size_t kOutputSlack = 64;  // bytes writable after the last id

struct Kernel {
  // Writes pretoken starts (offsets in scan.text) to `starts`, which has room for kMaxWindow;
  // returns how many. Fewer than kWindow only at the end of the text.
  std::size_t (*scan)(Gpt2Scan& scan, std::uint32_t* starts);

  // Writes which of the pretokens are longer than a key, and returns how many; `which` has room for
  // `count`, and kLongBlock entries behind the last start are readable.
  std::size_t (*find_long)(const std::uint32_t* starts, std::size_t count, std::uint16_t* which);

  std::uint64_t (*hash)(const WordKey& key);

  // BPE of a word of 2 to longest_narrow bytes, kKeySlack bytes of which are readable; `out` has
  // room for kMaxNarrow ids. BpeModel's own way does for longer ones.
  std::size_t longest_narrow;
  std::size_t (*merge_narrow)(const NarrowMerges& merges, const std::uint8_t* text,
                              std::size_t size, std::uint16_t* out);

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

const Kernel& kernel(Level level);

// The end of each pretoken as the level's own scanner sees it; nothing when it has none for the
// pattern. For tests. REQUIRES: text has fewer than 2^31 bytes.
std::optional<std::vector<std::int64_t>> scan_ends(Level level, Pattern pattern,
                                                   std::span<const std::uint8_t> text);

const Kernel& scalar_kernel();
#if defined(__x86_64__)
const Kernel& avx2_kernel();
const Kernel& avx512_kernel();
#endif

}  // namespace tokpack

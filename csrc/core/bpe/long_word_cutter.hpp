// What is done with the long words of a window before it is looked up in the word cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/buffer.hpp"
#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/joinable_bytes.hpp"
#include "core/bpe/word_cache.hpp"

namespace tokpack {

// Cuts words that are longer than a key of the word cache, between bytes that no merge joins, if
// all pieces then fit a key: such pieces are seldom new. Prefetches what the LongWordCache knows of
// the others.
class LongWordCutter {
 public:
  // The starts of what to look up; `starts[count]` is the end of the last one.
  struct Window {
    const std::uint32_t* starts;
    std::size_t count;
  };

  // `which` of the pretokens are longer than a key. `joinable` is null where words cannot be cut.
  // The answer is valid until the next call; it may be longer than kMaxWindow.
  Window prepare(const std::uint8_t* text, Window window, std::span<const std::uint16_t> which,
                 const JoinableBytes* joinable, const LongWordCache& cache) {
    cuts_.reserve(window.count + 1 + which.size() * LongWordCache::kMaxSize);
    std::uint32_t* cuts = cuts_.data();
    std::size_t from = 0, asked = 0;  // pretokens copied to `cuts`, words prefetched
    for (const std::size_t at : which) {
      const std::uint32_t begin = window.starts[at], end = window.starts[at + 1];
      if (end - begin > LongWordCache::kMaxSize) continue;
      std::uint32_t* pieces = cuts + (at - from);
      const std::size_t count =
          joinable != nullptr ? joinable->cut(text, begin, end, WordKey::kMaxSize, pieces) : 0;
      if (count != 0) {
        std::copy(window.starts + from, window.starts + at, cuts);
        cuts = pieces + count;
        from = at + 1;
      } else {
        hashes_[asked] = LongWordCache::hash(text + begin, end - begin);
        cache.prefetch(hashes_[asked++]);
      }
    }
    for (std::size_t i = 0; i < asked; ++i) cache.prefetch_word(hashes_[i]);
    if (from == 0) return window;
    cuts = std::copy(window.starts + from, window.starts + window.count, cuts);
    *cuts = window.starts[window.count];
    return {cuts_.data(), static_cast<std::size_t>(cuts - cuts_.data())};
  }

 private:
  Buffer<std::uint32_t> cuts_;
  std::uint64_t hashes_[kMaxWindow];
};

}  // namespace tokpack

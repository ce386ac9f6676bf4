// Preparing the long words of a window before it is looked up in the caches.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/buffer.hpp"
#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/bpe_model.hpp"
#include "core/bpe/medium_word_cache.hpp"
#include "core/bpe/word_cache.hpp"

namespace tokpack {

// Cuts words that are longer than a key of the word cache where no merge joins two characters: the
// pieces are seldom new. For what is still long it prefetches the entries of the other caches.
class LongWordCutter {
 public:
  // Pretokens to look up: where each begins, starts[count] being the end of the last one, and a
  // probe for each medium one, in order.
  struct Window {
    const std::uint32_t* starts;
    std::size_t count;
    const MediumProbe* probes;
  };

  // For a whole word that is not what merging makes of it: no word is cut such that this is a
  // piece.
  void keep_whole(const std::uint8_t* text, std::size_t size) {
    const std::uint64_t bit = LongWordCache::hash(text, size) % kFilterBits;
    unmerged_[bit / 64] |= std::uint64_t{1} << bit % 64;
    any_unmerged_ = true;
  }

  // The window with its long pretokens cut. `which`: their numbers. The result is valid until the
  // next call, and may have more than kMaxWindow pretokens.
  template <class Id>
  Window prepare(const std::uint8_t* text, Window window, std::span<const std::uint16_t> which,
                 const BpeModel& model, const MediumWordCache<Id>& mediums,
                 const LongWordCache& cache) {
    cuts_.reserve(window.count + 1 + which.size() * kMaxCut);
    probes_.clear();
    std::uint32_t* cuts = cuts_.data();
    std::size_t from = 0;  // pretokens copied to `cuts`
    std::size_t asked = 0;
    const auto ask = [&](std::uint32_t begin, std::uint32_t end) {
      if (MediumKey::fits(end - begin)) {
        return probes_.push_back(mediums.probe(text + begin, end - begin));
      }
      if (end - begin > LongWordCache::kMaxSize || asked == kMaxWindow) return;
      hashes_[asked] = LongWordCache::hash(text + begin, end - begin);
      cache.prefetch(hashes_[asked++]);
    };
    for (const std::size_t at : which) {
      const std::uint32_t begin = window.starts[at], end = window.starts[at + 1];
      std::uint32_t* pieces = cuts + (at - from);
      const std::size_t count = cut(text, begin, end, model, pieces);
      if (count > 1) {
        std::copy(window.starts + from, window.starts + at, cuts);
        cuts = pieces + count;
        from = at + 1;
        for (std::size_t i = 0; i < count; ++i) {
          if (pieces[i + 1] - pieces[i] > WordKey::kMaxSize) ask(pieces[i], pieces[i + 1]);
        }
      } else {
        ask(begin, end);
      }
    }
    for (std::size_t i = 0; i < asked; ++i) cache.prefetch_word(hashes_[i]);
    window.probes = probes_.data();
    if (from == 0) return window;
    cuts = std::copy(window.starts + from, window.starts + window.count, cuts);
    *cuts = window.starts[window.count];
    return {cuts_.data(), static_cast<std::size_t>(cuts - cuts_.data()), probes_.data()};
  }

 private:
  static constexpr std::uint32_t kMaxCut = 4096;  // bytes of a word that is cut
  static constexpr std::uint64_t kFilterBits = 1 << 16;

  // Writes where the pieces of a word begin, and its end behind them. Returns their number: 1 when
  // the word cannot be cut. `pieces` has room for one more than there are bytes.
  std::size_t cut(const std::uint8_t* text, std::uint32_t begin, std::uint32_t end,
                  const BpeModel& model, std::uint32_t* pieces) const {
    if (end - begin > kMaxCut) return 1;
    const std::size_t count = model.joinable().cut(text, begin, end, pieces);
    const WholeWords& words = model.whole_words();
    return count == 1 || words.empty() || may_cut(words, text, pieces, count) ? count : 1;
  }

  // Whether neither the word is a token without merging, nor a piece one that merging does not
  // give. Sometimes false without need.
  bool may_cut(const WholeWords& words, const std::uint8_t* text, const std::uint32_t* pieces,
               std::size_t count) const {
    for (std::size_t i = 0; any_unmerged_ && i < count; ++i) {
      const std::uint64_t bit =
          LongWordCache::hash(text + pieces[i], pieces[i + 1] - pieces[i]) % kFilterBits;
      if (unmerged_[bit / 64] >> bit % 64 & 1) return false;
    }
    return !words.find(text + pieces[0], pieces[count] - pieces[0]);
  }

  std::array<std::uint64_t, kFilterBits / 64> unmerged_{};
  bool any_unmerged_ = false;
  Buffer<std::uint32_t> cuts_;
  Buffer<MediumProbe> probes_;
  std::uint64_t hashes_[kMaxWindow];
};

}  // namespace tokpack

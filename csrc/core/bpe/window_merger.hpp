// BPE of a long text in windows of it, which overlap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tokpack {

// Where two windows that follow each other have a token in common, at the same place, the text has
// it too, and before it the tokens of the one window, behind it those of the other. For merging
// proceeds in the stretches between the ends of such tokens as if each were alone, until a merge
// crosses an end for the first time. Of that end both stretches beside it lie in one window, which
// has the same symbols there when all lower ranks have been merged; it would have crossed it too.
//
// Where they have none in common, the second one begins earlier, and gets longer. What is merged
// again and again is limited, so that no text takes more than some times as long as another one.
class WindowMerger {
 public:
  static constexpr std::size_t kLeast = 32;  // bytes of a window, which is merged in registers

  // `sizes`: the bytes of each id that merging can make.
  explicit WindowMerger(std::span<const std::uint32_t> sizes, std::size_t least = kLeast)
      : sizes_(sizes), least_(least), size_of_window_(least) {}

  // Writes the ids of a text to `out`, which has room for `size` of them, and returns how many; 0
  // where windows do not tell. `merge(text, size, out)` does the same for any text.
  template <class Merge>
  std::size_t encode(const std::uint8_t* text, std::size_t size, std::uint32_t* out,
                     Merge&& merge) {
    std::size_t count = 0;
    merged_ = 0;
    read(&window_, text, 0, std::min(size_of_window_, size), merge);
    while (window_.end < size) {
      const std::optional<std::size_t> kept = advance(text, size, merge);
      if (!kept) return 0;
      out = std::copy_n(window_.ids.begin() + static_cast<std::ptrdiff_t>(window_.first),
                        *kept - window_.first, out);
      count += *kept - window_.first;
      std::swap(window_, next_);
    }
    std::copy(window_.ids.begin() + static_cast<std::ptrdiff_t>(window_.first), window_.ids.end(),
              out);
    return count + window_.ids.size() - window_.first;
  }

 private:
  struct Window {
    std::size_t end;                 // in the text
    std::vector<std::uint32_t> ids;  // and where each begins
    std::vector<std::size_t> begins;
    std::size_t first;  // of the ids that are still to be written
  };

  // How far from the end of a window the next one begins, in tokens, and how long it is. Tokens at
  // the end may be other ones in the text.
  struct Overlap {
    std::size_t tokens, windows;
  };
  static constexpr std::size_t kTried = 256, kMost = 4;
  static constexpr std::size_t kMostTimes = 4, kSpare = 1 << 14;
  static constexpr std::size_t kAll = ~std::size_t{0};
  static constexpr Overlap kOverlaps[] = {{2, 1},     {5, 1},     {kAll, 2},   {kAll, 4},
                                          {kAll, 16}, {kAll, 64}, {kAll, 256}, {kAll, 1024}};

  template <class Merge>
  void read(Window* window, const std::uint8_t* text, std::size_t begin, std::size_t end,
            Merge&& merge) {
    merged_ += end - begin;
    window->ids.resize(end - begin);
    window->ids.resize(merge(text + begin, end - begin, window->ids.data()));
    window->begins.resize(window->ids.size());
    for (std::size_t i = 0; i < window->ids.size(); ++i) {
      window->begins[i] = begin;
      begin += size_of(window->ids[i]);
    }
    window->end = end;
    window->first = 0;
  }

  // Sets next_ to a window that goes on; returns how many ids of this one are before its ids.
  template <class Merge>
  std::optional<std::size_t> advance(const std::uint8_t* text, std::size_t size, Merge&& merge) {
    const std::size_t have = window_.ids.size();
    for (const Overlap& overlap : kOverlaps) {
      const std::size_t from = std::max(window_.first, have - std::min(have, overlap.tokens));
      const std::size_t begin = window_.begins[from];
      const std::size_t end = std::min(size, begin + overlap.windows * size_of_window_);
      if (end <= window_.end) continue;
      if (merged_ > kMostTimes * window_.end + kSpare) break;
      // Merging all of the text takes little longer than its larger half, and tells for certain.
      if (overlap.windows > 1 && end == size && begin < size / 2) break;
      read(&next_, text, begin, end, merge);
      const auto kept = common(from);
      if (&overlap == kOverlaps) adapt(!kept);
      if (kept) return kept;
    }
    return std::nullopt;
  }

  // Doubles windows while many have nothing in common, as where tokens are long.
  void adapt(bool failed) {
    failed_ += failed;
    if (++tried_ < kTried) return;
    if (failed_ > kTried / 3) {
      size_of_window_ = std::min(2 * size_of_window_, kMost * least_);
    } else if (failed_ == 0) {
      size_of_window_ = std::max(size_of_window_ / 2, least_);
    }
    tried_ = failed_ = 0;
  }

  // The first token of window_ from this one on that next_ has, too.
  std::optional<std::size_t> common(std::size_t at) {
    for (std::size_t& other = next_.first; at < window_.ids.size() && other < next_.ids.size();) {
      if (window_.begins[at] == next_.begins[other] && window_.ids[at] == next_.ids[other]) {
        return at;
      }
      ++(window_.begins[at] <= next_.begins[other] ? at : other);
    }
    return std::nullopt;
  }

  // Of a byte that has no id it is one.
  std::size_t size_of(std::uint32_t id) const { return id < sizes_.size() ? sizes_[id] : 1; }

  std::span<const std::uint32_t> sizes_;
  std::size_t least_, size_of_window_;
  std::size_t tried_ = 0, failed_ = 0;  // windows
  std::size_t merged_ = 0;              // bytes, since the text began
  Window window_, next_;
};

}  // namespace tokpack

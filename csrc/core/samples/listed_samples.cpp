#include "core/samples/listed_samples.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/base/prefetch.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kChunk = 32;  // samples whose memory is fetched at the same time

struct Bounds {
  std::int64_t first, begin, last, end;  // position and token of both ends
};

template <class Index>
bool read_bounds(std::span<const Index> index, std::uint64_t sample, std::size_t documents,
                 Bounds& out) {
  if (sample >= index.size() / 2 || index.size() / 2 - sample < 2) return false;
  const Index* entry = index.data() + 2 * sample;
  out = {static_cast<std::int64_t>(entry[0]), static_cast<std::int64_t>(entry[1]),
         static_cast<std::int64_t>(entry[2]), static_cast<std::int64_t>(entry[3])};
  return out.first >= 0 && out.first <= out.last &&
         static_cast<std::uint64_t>(out.last) < documents;
}

bool append_rows(const ListedSamples& listed, const Bounds& bounds, std::vector<Row>& rows) {
  const std::size_t before = rows.size();
  const std::size_t sequences = listed.lengths.size() / sizeof(std::int32_t);
  for (std::int64_t p = bounds.first; p <= bounds.last; ++p) {
    const std::int32_t document = listed.documents[static_cast<std::size_t>(p)];
    if (document < 0 || static_cast<std::size_t>(document) >= sequences) return false;
    std::int32_t length;
    std::memcpy(&length, listed.lengths.data() + static_cast<std::size_t>(document) * 4, 4);
    rows.push_back({document, 0, length});
  }
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();  // of a sequence
  if (bounds.begin < 0 || bounds.begin > kLongest || bounds.end < -1 || bounds.end > kLongest) {
    return false;
  }
  rows.back().count = std::max<std::int64_t>(bounds.end + (listed.extra ? 1 : 0), 0);
  rows[before].first = bounds.begin;
  rows[before].count -= bounds.begin;
  return rows[before].count >= 0;
}

}  // namespace

template <class Index, class Shuffle>
std::size_t listed_rows(const ListedSamples& listed, std::span<const Index> index,
                        std::span<const Shuffle> shuffle, std::span<const std::int64_t> samples,
                        std::vector<Row>& rows, std::span<std::int64_t> counts) {
  const auto known = [&](std::int64_t k) {
    return k >= 0 && static_cast<std::uint64_t>(k) < shuffle.size();
  };
  std::array<Bounds, kChunk> bounds;
  for (std::size_t begin = 0; begin < samples.size(); begin += kChunk) {
    const auto chunk = samples.subspan(begin, std::min(kChunk, samples.size() - begin));
    for (const std::int64_t k : chunk) {
      if (known(k)) prefetch(&shuffle[static_cast<std::size_t>(k)]);
    }
    for (const std::int64_t k : chunk) {
      if (!known(k)) continue;
      const auto sample = static_cast<std::uint64_t>(shuffle[static_cast<std::size_t>(k)]);
      if (sample < index.size() / 2) prefetch(&index[2 * sample]);
    }
    std::size_t good = 0;
    for (; good < chunk.size() && known(chunk[good]); ++good) {
      const auto sample =
          static_cast<std::uint64_t>(shuffle[static_cast<std::size_t>(chunk[good])]);
      if (!read_bounds(index, sample, listed.documents.size(), bounds[good])) break;
      prefetch(&listed.documents[static_cast<std::size_t>(bounds[good].first)]);
    }
    for (std::size_t i = 0; i < good; ++i) {
      const std::size_t sequences = listed.lengths.size() / sizeof(std::int32_t);
      constexpr std::int64_t kFew = 16;
      const std::int64_t last = std::min(bounds[i].last, bounds[i].first + kFew);
      for (std::int64_t p = bounds[i].first; p <= last; ++p) {
        const std::int32_t document = listed.documents[static_cast<std::size_t>(p)];
        if (document >= 0 && static_cast<std::size_t>(document) < sequences) {
          prefetch(listed.lengths.data() + static_cast<std::size_t>(document) * 4);
        }
      }
    }
    for (std::size_t i = 0; i < good; ++i) {
      const std::size_t before = rows.size();
      if (!append_rows(listed, bounds[i], rows)) return begin + i;
      counts[begin + i] = static_cast<std::int64_t>(rows.size() - before);
    }
    if (good < chunk.size()) return begin + good;
  }
  return samples.size();
}

using Samples = std::span<const std::int64_t>;
using Counts = std::span<std::int64_t>;

template std::size_t listed_rows(const ListedSamples&, std::span<const std::int32_t>,
                                 std::span<const std::uint32_t>, Samples, std::vector<Row>&,
                                 Counts);
template std::size_t listed_rows(const ListedSamples&, std::span<const std::int32_t>,
                                 std::span<const std::int64_t>, Samples, std::vector<Row>&, Counts);
template std::size_t listed_rows(const ListedSamples&, std::span<const std::int64_t>,
                                 std::span<const std::uint32_t>, Samples, std::vector<Row>&,
                                 Counts);
template std::size_t listed_rows(const ListedSamples&, std::span<const std::int64_t>,
                                 std::span<const std::int64_t>, Samples, std::vector<Row>&, Counts);

}  // namespace tokpack

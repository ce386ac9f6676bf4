#include "core/documents/phrases.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/base/prefetch.hpp"
#include "core/documents/ngrams.hpp"

namespace tokpack {
namespace {

constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
constexpr std::size_t kRunsOfWord = 4;                  // so few other runs pass the filter
constexpr unsigned kLeastBits = 6;
constexpr std::size_t kBatch = 32;

unsigned shift_for(std::size_t least) {
  return 64 - std::max(kLeastBits, static_cast<unsigned>(std::bit_width(least)));
}

// Three bits of a word of the filter.
std::uint64_t bits_of(std::uint64_t spread) {
  return std::uint64_t{1} << (spread & 63) | std::uint64_t{1} << (spread >> 6 & 63) |
         std::uint64_t{1} << (spread >> 12 & 63);
}

std::uint64_t spread_of(std::uint64_t hash) {
  hash *= kSpread;
  return hash ^ hash >> 32;
}

}  // namespace

Phrases::Phrases(std::vector<std::uint64_t> texts, std::span<const std::int64_t> ends,
                 std::size_t ngram, std::size_t shortest, std::span<const std::uint8_t> sizes,
                 std::size_t size)
    : texts_(std::move(texts)) {
  if (shortest < 1 || shortest > ngram) {
    throw std::invalid_argument("shortest must be at least 1, and at most the n-gram");
  }
  std::int64_t before = 0;
  for (const std::int64_t end : ends) {
    if (end < before || static_cast<std::size_t>(end) > texts_.size()) {
      throw std::invalid_argument("ends of texts go down, or beyond the tokens");
    }
    before = end;
  }
  const bool has_sizes = !sizes.empty() || size != 1;
  if (has_sizes && sizes.size() != texts_.size()) {
    throw std::invalid_argument("each token must have a size");
  }
  if (std::any_of(sizes.begin(), sizes.end(), [&](auto one) { return one < 1 || one > size; })) {
    throw std::invalid_argument("a size must be at least 1, and at most the largest");
  }
  choose(ends, ngram, shortest, sizes, size);
  if (phrases_.size() >= std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("more phrases than 2^32");
  }
  build(long_, ngram, true);
  build(short_, shortest, false);
}

// Sets phrases_, in the order of the texts.
void Phrases::choose(std::span<const std::int64_t> ends, std::size_t ngram, std::size_t shortest,
                     std::span<const std::uint8_t> sizes, std::size_t size) {
  struct Candidate {
    std::uint64_t hash;
    Phrase phrase;
  };
  std::vector<Candidate> candidates;
  const std::span<const std::uint64_t> all = texts_;
  const auto take = [&](std::size_t begin, std::size_t end) {
    candidates.push_back(
        {hash_ngram(all.subspan(begin, end - begin)),
         {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end - begin)}});
  };
  const auto size_of = [&](std::size_t token) { return sizes.empty() ? 1 : sizes[token]; };
  const std::size_t long_size = ngram * size, short_size = shortest * size;
  std::size_t begin = 0;
  for (const std::int64_t signed_end : ends) {
    const auto last = static_cast<std::size_t>(signed_end);
    std::size_t sum = 0;  // of the tokens from `first` to `end`
    for (std::size_t first = begin, end = begin; first < last; sum -= size_of(first++)) {
      while (end < last && sum < long_size) sum += size_of(end++);
      if (sum >= long_size || (first == begin && sum >= short_size)) take(first, end);
      if (sum < long_size) break;  // the rest has no n-gram
    }
    begin = last;
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    if (a.phrase.length != b.phrase.length) return a.phrase.length < b.phrase.length;
    return a.phrase.begin < b.phrase.begin;
  });
  const auto same = [&](const Candidate& a, const Candidate& b) {
    const auto first = texts_.begin() + a.phrase.begin;
    return a.hash == b.hash && a.phrase.length == b.phrase.length &&
           std::equal(first, first + a.phrase.length, texts_.begin() + b.phrase.begin);
  };
  const auto end = std::unique(candidates.begin(), candidates.end(), same);
  for (auto i = candidates.begin(); i != end; ++i) phrases_.push_back(i->phrase);
  std::sort(phrases_.begin(), phrases_.end(),
            [](const Phrase& a, const Phrase& b) { return a.begin < b.begin; });
}

void Phrases::build(Table& table, std::size_t anchor, bool whole) const {
  table.anchor = anchor;
  table.probe = (5 * anchor + 7) / 8;
  table.step = anchor - table.probe + 1;
  const std::span<const std::uint64_t> all = texts_;
  for (std::size_t i = 0; i < phrases_.size(); ++i) {
    if ((static_cast<std::size_t>(phrases_[i].length) >= long_.anchor) != whole) continue;
    const auto begin = static_cast<std::size_t>(phrases_[i].begin);
    table.entries.push_back({hash_ngram(all.subspan(begin, anchor)), static_cast<std::int64_t>(i)});
  }
  std::sort(table.entries.begin(), table.entries.end());
  const std::size_t count = table.entries.size();
  table.slot_shift = shift_for(count * 2);
  table.slots = HugeArray<std::uint32_t>(std::size_t{1} << (64 - table.slot_shift));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t hash = table.entries[i].hash;
    if (i > 0 && table.entries[i - 1].hash == hash) continue;
    std::size_t slot = spread_of(hash) >> table.slot_shift;
    while (table.slots[slot] != 0) slot = (slot + 1) & (table.slots.size() - 1);
    table.slots[slot] = static_cast<std::uint32_t>(i + 1);
  }
  fill_filter(table);
}

void Phrases::fill_filter(Table& table) const {
  const std::span<const std::uint64_t> all = texts_;
  std::vector<std::uint64_t> runs;
  for (const Entry& entry : table.entries) {
    const auto begin =
        static_cast<std::size_t>(phrases_[static_cast<std::size_t>(entry.phrase)].begin);
    for (std::size_t i = 0; i < table.step; ++i) {
      runs.push_back(spread_of(hash_ngram(all.subspan(begin + i, table.probe))));
    }
  }
  std::sort(runs.begin(), runs.end());
  runs.erase(std::unique(runs.begin(), runs.end()), runs.end());
  table.filter_shift = shift_for(runs.size() / kRunsOfWord);
  table.filter = HugeArray<std::uint64_t>(std::size_t{1} << (64 - table.filter_shift));
  for (const std::uint64_t run : runs) table.filter[run >> table.filter_shift] |= bits_of(run);
}

template <class T>
void Phrases::find(std::int64_t document, std::span<const T> tokens, std::vector<Hit>& out) const {
  find_in(long_, document, tokens, out);
  find_in(short_, document, tokens, out);
}

template <class T>
void Phrases::find_in(const Table& table, std::int64_t document, std::span<const T> tokens,
                      std::vector<Hit>& out) const {
  if (table.entries.empty() || tokens.size() < table.anchor) return;
  const std::uint64_t* const filter = table.filter.data();
  const unsigned shift = table.filter_shift;
  const std::size_t last = tokens.size() - table.anchor;
  const std::size_t runs = (tokens.size() - table.probe) / table.step + 1;
  std::array<std::uint64_t, kBatch> spreads;
  for (std::size_t done = 0; done < runs; done += kBatch) {
    // A large filter is in no near cache, so the words of a batch are asked for before any is used.
    const std::size_t count = std::min(kBatch, runs - done);
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t at = (done + k) * table.step;
      spreads[k] = spread_of(hash_ngram(tokens.subspan(at, table.probe)));
      prefetch(filter + (spreads[k] >> shift));
    }
    for (std::size_t k = 0; k < count; ++k) {
      const std::uint64_t bits = bits_of(spreads[k]);
      if ((filter[spreads[k] >> shift] & bits) != bits) [[likely]]
        continue;
      // The anchors that the run lies in; those before them were looked at with the run before.
      const std::size_t at = (done + k) * table.step;
      std::size_t i = at < table.step ? 0 : at - table.step + 1;
      for (; i <= std::min(at, last); ++i) {
        look_up(table, hash_ngram(tokens.subspan(i, table.anchor)), document, tokens, i, out);
      }
    }
  }
}

template <class T>
void Phrases::look_up(const Table& table, std::uint64_t hash, std::int64_t document,
                      std::span<const T> tokens, std::size_t position,
                      std::vector<Hit>& out) const {
  std::size_t slot = spread_of(hash) >> table.slot_shift;
  while (table.slots[slot] != 0 && table.entries[table.slots[slot] - 1].hash != hash) {
    slot = (slot + 1) & (table.slots.size() - 1);
  }
  if (table.slots[slot] == 0) return;
  const auto rest = tokens.subspan(position);
  for (std::size_t i = table.slots[slot] - 1; i < table.entries.size(); ++i) {
    if (table.entries[i].hash != hash) return;
    const Phrase& phrase = phrases_[static_cast<std::size_t>(table.entries[i].phrase)];
    const auto first = texts_.begin() + phrase.begin;
    if (static_cast<std::size_t>(phrase.length) <= rest.size() &&
        std::equal(first, first + phrase.length, rest.begin())) {
      const auto begin = static_cast<std::int64_t>(position);
      out.push_back({document, begin, begin + phrase.length, table.entries[i].phrase});
    }
  }
}

template void Phrases::find(std::int64_t, std::span<const std::uint16_t>, std::vector<Hit>&) const;
template void Phrases::find(std::int64_t, std::span<const std::uint32_t>, std::vector<Hit>&) const;
template void Phrases::find(std::int64_t, std::span<const std::uint64_t>, std::vector<Hit>&) const;

}  // namespace tokpack

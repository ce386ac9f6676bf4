#include "core/documents/sketch.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "core/documents/ngrams.hpp"

namespace tokpack {
namespace {

constexpr std::uint64_t kRound = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
constexpr std::uint32_t kNoRound = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kEmpty = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kKept = 1 << 14;  // n-grams whose hashes are kept for later rounds
constexpr std::size_t kFew = 256;

inline std::size_t place_of(std::uint64_t hash, std::size_t places) {
  return static_cast<std::size_t>((hash >> 32) * places >> 32);
}

inline std::uint32_t value_of(std::uint64_t hash) {
  return std::min(static_cast<std::uint32_t>(hash), kEmpty - 1);
}

}  // namespace

Sketch::Sketch(std::size_t ngram, std::size_t bands, std::size_t rows)
    : ngram_(ngram), bands_(bands), rows_(rows) {
  if (ngram < 1 || bands < 1 || rows < 1 || bands > kMostPlaces || rows > kMostPlaces ||
      bands * rows > kMostPlaces) {
    throw std::invalid_argument(
        "n-gram, bands and rows must be at least 1, and the bands times "
        "the rows at most 4096");
  }
  values_.resize(bands * rows);
  filled_in_.resize(bands * rows);
}

template <class T>
void Sketch::band_hashes(std::span<const T> tokens, std::span<std::uint64_t> out) {
  if (tokens.empty()) {
    std::fill(out.begin(), out.end(), 0);
    return;
  }
  first_round(tokens);
  if (std::find(values_.begin(), values_.end(), kEmpty) != values_.end()) later_rounds(tokens);
  const std::span<const std::uint32_t> values = values_;
  for (std::size_t b = 0; b < bands_; ++b) {
    out[b] = mix_hash(hash_ngram(values.subspan(b * rows_, rows_)));
  }
}

template <class T>
void Sketch::first_round(std::span<const T> tokens) {
  std::fill(values_.begin(), values_.end(), kEmpty);
  std::uint32_t* const values = values_.data();
  const std::size_t places = values_.size();
  const auto take = [&](std::uint64_t ngram) {
    const std::uint64_t hash = mix_hash(ngram);
    std::uint32_t& value = values[place_of(hash, places)];
    value = std::min(value, value_of(hash));
  };
  if (tokens.size() > kKept) {
    each_ngram(tokens, ngram_, [&](std::size_t, std::uint64_t ngram) { take(ngram); });
    return;
  }
  hashes_.resize(tokens.size());
  std::uint64_t* end = hashes_.data();
  each_ngram(tokens, ngram_, [&](std::size_t, std::uint64_t ngram) { *end++ = ngram; });
  hashes_.resize(static_cast<std::size_t>(end - hashes_.data()));
  for (const std::uint64_t ngram : hashes_) take(ngram);
}

template <class T>
void Sketch::later_rounds(std::span<const T> tokens) {
  for (std::size_t place = 0; place < values_.size(); ++place) {
    filled_in_[place] = values_[place] == kEmpty ? kNoRound : 0;
  }
  empty_ = static_cast<std::size_t>(std::count(values_.begin(), values_.end(), kEmpty));
  std::uint32_t round = 1;
  if (tokens.size() <= kKept) {
    // Sorting takes as long as some rounds.
    for (const std::uint32_t last = hashes_.size() > kFew ? 4 : 16; round < last; ++round) {
      if (fill_round(round)) return;
    }
  } else {
    hashes_.clear();
    each_ngram(tokens, ngram_, [&](std::size_t, std::uint64_t hash) { hashes_.push_back(hash); });
  }
  // Places stay empty for long because the n-grams are few, however often each of them occurs.
  std::sort(hashes_.begin(), hashes_.end());
  hashes_.erase(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());
  while (!fill_round(round)) ++round;
  if (hashes_.capacity() > kKept) std::vector<std::uint64_t>().swap(hashes_);
}

// Whether all places are filled after the round, at the latest after 2 * places of them. It looks
// at no place but those that an n-gram falls into: of a short document that are few.
bool Sketch::fill_round(std::uint32_t round) {
  const std::size_t places = values_.size();
  const std::uint64_t offset = round * kRound;
  if (round >= places && filled_in_[round - places] < round) return false;
  for (const std::uint64_t ngram : hashes_) {
    const std::uint64_t hash = mix_hash(ngram + offset);
    const std::size_t place = round < places ? place_of(hash, places) : round - places;
    if (filled_in_[place] < round) continue;
    if (filled_in_[place] == kNoRound) {
      filled_in_[place] = round;
      values_[place] = value_of(hash);
      --empty_;
    } else {
      values_[place] = std::min(values_[place], value_of(hash));
    }
  }
  return empty_ == 0;
}

template void Sketch::band_hashes(std::span<const std::uint16_t>, std::span<std::uint64_t>);
template void Sketch::band_hashes(std::span<const std::uint32_t>, std::span<std::uint64_t>);
template void Sketch::band_hashes(std::span<const std::uint64_t>, std::span<std::uint64_t>);

}  // namespace tokpack

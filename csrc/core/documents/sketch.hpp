// Signatures of documents (MinHash): the share of places in which two agree estimates the
// similarity of their sets of n-grams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tokpack {

// Fast similarity sketching (Dahlgaard, Knudsen, Thorup: https://arxiv.org/abs/1704.04370). A
// signature has bands * rows places. In round r each n-gram falls into one place, with a value;
// a place that no earlier round has filled keeps the smallest. Rounds follow until every place is
// filled, so a document with many n-grams hashes each of them once, in place of once for each
// place as MinHash does, and one with few has as many independent places all the same. Two
// signatures have the same value in a place with the probability of the Jaccard similarity of the
// two sets.
//
//   hash   = mix_hash(hash of the n-gram + r * 0x9E3779B97F4A7C15)
//   place  = (upper 32 bits * places) >> 32 in rounds r < places; r - places after these
//   value  = lower 32 bits, at most 2^32 - 2
//
// A band is `rows` values in a row, and its hash mix_hash(hash_ngram(values)). Documents that
// agree in a band are candidates: two of similarity J with probability 1 - (1 - J^rows)^bands.
class Sketch {
 public:
  static constexpr std::size_t kMostPlaces = 4096;

  // Throws std::invalid_argument unless all are at least 1 and the places at most kMostPlaces.
  Sketch(std::size_t ngram, std::size_t bands, std::size_t rows);

  std::size_t bands() const { return bands_; }

  // Writes the hash of each band; a document without tokens has none to compare, so all are 0. T is
  // an unsigned integer of 2, 4 or 8 bytes.
  template <class T>
  void band_hashes(std::span<const T> tokens, std::span<std::uint64_t> out);

 private:
  template <class T>
  void first_round(std::span<const T> tokens);
  template <class T>
  void later_rounds(std::span<const T> tokens);
  bool fill_round(std::uint32_t round);

  std::size_t ngram_, bands_, rows_;
  std::size_t empty_ = 0;  // places
  std::vector<std::uint32_t> values_;
  std::vector<std::uint32_t> filled_in_;  // the round of each place
  std::vector<std::uint64_t> hashes_;     // of the n-grams of a short document
};

}  // namespace tokpack

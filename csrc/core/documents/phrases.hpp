// Finds the phrases of evaluation texts in documents: all n-grams of long texts, and short texts
// whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/huge_array.hpp"

namespace tokpack {

// A set of phrases. A text of at least `ngram` tokens gives all its n-grams, a shorter one of at
// least `shortest` tokens gives itself, any other gives nothing. If tokens have sizes, the largest
// of which is `size`, an n-gram is as many consecutive tokens as are together as large as `ngram`
// of the largest. Equal phrases are one, at its first place. Matches are compared token by token:
// no hash is trusted.
class Phrases {
 public:
  struct Phrase {
    std::int64_t begin;  // in all tokens of all texts
    std::int64_t length;
  };
  struct Hit {
    std::int64_t document;    // as given to find()
    std::int64_t begin, end;  // the tokens of it in the document
    std::int64_t phrase;
  };

  // `texts` has the tokens of all texts, which end at `ends`; `sizes` has the size of each token,
  // or is empty if all are 1. Throws std::invalid_argument if ends descend or exceed the tokens, if
  // there are not as many sizes as tokens or none is the largest, and unless 1 <= shortest <=
  // ngram.
  Phrases(std::vector<std::uint64_t> texts, std::span<const std::int64_t> ends, std::size_t ngram,
          std::size_t shortest, std::span<const std::uint8_t> sizes = {}, std::size_t size = 1);

  std::span<const Phrase> phrases() const { return phrases_; }

  // Appends the places of phrases in a document: those of n tokens in order, then the short ones. T
  // is an unsigned integer of 2, 4 or 8 bytes.
  template <class T>
  void find(std::int64_t document, std::span<const T> tokens, std::vector<Hit>& out) const;

 private:
  struct Entry {
    std::uint64_t hash;  // of the first tokens
    std::int64_t phrase;
    auto operator<=>(const Entry&) const = default;
  };
  // Phrases by the hash of their first `anchor` tokens. Only every `step`-th run of `probe` tokens
  // of a document is looked up: one of them lies in each anchor, wherever that is, since probe +
  // step - 1 == anchor. The filter has all runs of `probe` tokens in anchors.
  struct Table {
    std::size_t anchor = 1, probe = 1, step = 1;
    unsigned filter_shift = 0, slot_shift = 0;
    HugeArray<std::uint64_t> filter;  // a Bloom filter; each run has one word
    HugeArray<std::uint32_t> slots;   // 1 + the first entry of a hash; 0 is none
    std::vector<Entry> entries;       // ordered by hash, then phrase
  };

  void choose(std::span<const std::int64_t> ends, std::size_t ngram, std::size_t shortest,
              std::span<const std::uint8_t> sizes, std::size_t size);
  void build(Table& table, std::size_t anchor, bool whole) const;
  void fill_filter(Table& table) const;
  template <class T>
  void find_in(const Table& table, std::int64_t document, std::span<const T> tokens,
               std::vector<Hit>& out) const;
  template <class T>
  void look_up(const Table& table, std::uint64_t hash, std::int64_t document,
               std::span<const T> tokens, std::size_t position, std::vector<Hit>& out) const;

  std::vector<std::uint64_t> texts_;
  std::vector<Phrase> phrases_;
  Table long_, short_;
};

}  // namespace tokpack

// Which documents belong together: pairs with equal keys, and the clusters that pairs form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tokpack {

// Two documents; first < second.
struct DocumentPair {
  std::int64_t first;
  std::int64_t second;
  bool operator==(const DocumentPair&) const = default;
};

// A key of 128 bits.
struct Key128 {
  std::uint64_t high;
  std::uint64_t low;
  auto operator<=>(const Key128&) const = default;
};

// Appends pairs of documents with equal keys, for the keys whose upper 32 bits lie in share `part`
// of `parts`: for each document but the first of its key (first, document), and with `neighbours`
// also (previous, document). They are ordered by key, then document, so all parts in order give the
// same pairs, whatever their number. Takes 16 to 24 bytes for each key of the part. Key is
// std::uint64_t or Key128.
template <class Key>
void equal_pairs(std::span<const Key> keys, std::uint32_t part, std::uint32_t parts,
                 bool neighbours, std::vector<DocumentPair>& out);

// A forest in which parents[i] <= i: the root of a tree is its smallest document, so the trees and
// their roots do not depend on the order of the pairs. Begin with parents[i] = i.
//
// Both throw std::invalid_argument for a parent or a document that does not exist.
void join_pairs(std::span<std::int64_t> parents, std::span<const DocumentPair> pairs);
// Appends the pairs that are in different trees.
void separate_pairs(std::span<std::int64_t> parents, std::span<const DocumentPair> pairs,
                    std::vector<DocumentPair>& out);

// The Jaccard similarity of the sets of n-grams of two documents, in [0, 1]; 0 where one has no
// token. Different n-grams are told apart by 64 bits.
template <class T>
double jaccard(std::span<const T> a, std::span<const T> b, std::size_t n);

}  // namespace tokpack

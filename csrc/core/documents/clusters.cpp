#include "core/documents/clusters.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/documents/ngrams.hpp"

namespace tokpack {
namespace {

std::uint64_t upper(std::uint64_t key) { return key >> 32; }
std::uint64_t upper(const Key128& key) { return key.high >> 32; }

void check(std::span<const std::int64_t> parents, std::int64_t document) {
  if (document < 0 || static_cast<std::size_t>(document) >= parents.size()) {
    throw std::invalid_argument("document " + std::to_string(document) + " of " +
                                std::to_string(parents.size()));
  }
}

std::int64_t root_of(std::span<std::int64_t> parents, std::int64_t document) {
  check(parents, document);
  std::int64_t* const all = parents.data();
  while (all[document] != document) {
    const std::int64_t parent = all[document];
    if (parent < 0 || parent > document) {
      throw std::invalid_argument("the parent of document " + std::to_string(document) + " is " +
                                  std::to_string(parent));
    }
    all[document] = all[parent];
    document = parent;
  }
  return document;
}

template <class T>
std::vector<std::uint64_t> set_of(std::span<const T> tokens, std::size_t n) {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(tokens.size());
  each_ngram(tokens, n, [&](std::size_t, std::uint64_t hash) { hashes.push_back(hash); });
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  return hashes;
}

}  // namespace

template <class Key>
void equal_pairs(std::span<const Key> keys, std::uint32_t part, std::uint32_t parts,
                 bool neighbours, std::vector<DocumentPair>& out) {
  struct Entry {
    Key key;
    std::int64_t document;
    auto operator<=>(const Entry&) const = default;
  };
  std::vector<Entry> entries;
  entries.reserve(keys.size() / parts + keys.size() / parts / 8);  // growing would take twice
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (upper(keys[i]) * parts >> 32 != part) continue;
    entries.push_back({keys[i], static_cast<std::int64_t>(i)});
  }
  std::sort(entries.begin(), entries.end());
  std::size_t first = 0;
  for (std::size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].key != entries[first].key) {
      first = i;
      continue;
    }
    out.push_back({entries[first].document, entries[i].document});
    if (neighbours && i > first + 1) {
      out.push_back({entries[i - 1].document, entries[i].document});
    }
  }
}

void join_pairs(std::span<std::int64_t> parents, std::span<const DocumentPair> pairs) {
  for (const DocumentPair& pair : pairs) {
    const std::int64_t a = root_of(parents, pair.first), b = root_of(parents, pair.second);
    parents[static_cast<std::size_t>(std::max(a, b))] = std::min(a, b);
  }
}

void separate_pairs(std::span<std::int64_t> parents, std::span<const DocumentPair> pairs,
                    std::vector<DocumentPair>& out) {
  for (const DocumentPair& pair : pairs) {
    if (root_of(parents, pair.first) != root_of(parents, pair.second)) out.push_back(pair);
  }
}

template <class T>
double jaccard(std::span<const T> a, std::span<const T> b, std::size_t n) {
  const auto one = set_of(a, n), other = set_of(b, n);
  std::size_t shared = 0;
  for (auto i = one.begin(), k = other.begin(); i != one.end() && k != other.end();) {
    shared += *i == *k;
    const bool forward = *i <= *k, back = *k <= *i;
    i += forward;
    k += back;
  }
  const std::size_t together = one.size() + other.size() - shared;
  return together == 0 ? 0 : static_cast<double>(shared) / static_cast<double>(together);
}

template void equal_pairs(std::span<const std::uint64_t>, std::uint32_t, std::uint32_t, bool,
                          std::vector<DocumentPair>&);
template void equal_pairs(std::span<const Key128>, std::uint32_t, std::uint32_t, bool,
                          std::vector<DocumentPair>&);
template double jaccard(std::span<const std::uint16_t>, std::span<const std::uint16_t>,
                        std::size_t);
template double jaccard(std::span<const std::uint32_t>, std::span<const std::uint32_t>,
                        std::size_t);
template double jaccard(std::span<const std::uint64_t>, std::span<const std::uint64_t>,
                        std::size_t);

}  // namespace tokpack

#include "core/bpe/ranked_merges.hpp"

#include <array>
#include <bit>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "core/base/huge_array.hpp"

namespace tokpack {

namespace {

constexpr std::uint32_t kNoRank = 0xFFFFFFFFu;

// The merges found so far: two ranks -> the rank of both together.
class FoundMerges {
 public:
  explicit FoundMerges(std::size_t tokens)
      : pairs_(std::bit_ceil(tokens * 2 + 16)), mask_(pairs_.size() - 1) {}

  void add(const Merge& merge) {
    pairs_[slot(merge.left, merge.right)] =
        key(merge.left, merge.right) << 22 | (merge.product + 1);
  }
  std::uint32_t operator()(std::uint32_t left, std::uint32_t right) const {
    return static_cast<std::uint32_t>(pairs_[slot(left, right)] & 0x3FFFFF) - 1;
  }

 private:
  static std::uint64_t key(std::uint32_t left, std::uint32_t right) {
    return std::uint64_t{left} << 21 | right;
  }
  std::size_t slot(std::uint32_t left, std::uint32_t right) const {
    const std::uint64_t wanted = key(left, right);
    std::size_t at = ((wanted * 0x9E3779B97F4A7C15ull) >> 32) & mask_;
    while (pairs_[at] != 0 && pairs_[at] >> 22 != wanted) at = (at + 1) & mask_;
    return at;
  }

  HugeArray<std::uint64_t> pairs_;  // left 21 bits, right 21 bits, product + 1 in 22 bits
  std::size_t mask_;
};

// Tokens by their bytes, made when a token needs another of a higher rank.
class ByBytes {
 public:
  explicit ByBytes(std::span<const std::string_view> tokens) {
    for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
      if (!tokens[rank].empty()) ranks_.emplace(tokens[rank], static_cast<std::uint32_t>(rank));
    }
  }
  std::uint32_t operator()(std::string_view token) const {
    const auto found = ranks_.find(token);
    return found == ranks_.end() ? kNoRank : found->second;
  }

 private:
  std::unordered_map<std::string_view, std::uint32_t> ranks_;
};

struct Part {
  std::uint32_t rank;
  std::uint32_t begin;
};

// Merges the parts of `token` until two are left, or nothing can be merged. `pair` gives the rank
// of two neighbours together; `ranks` is scratch.
template <class Pair>
void merge_to_two(std::vector<Part>& parts, std::vector<std::uint32_t>& ranks, const Pair& pair) {
  ranks.clear();
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) ranks.push_back(pair(i));
  while (ranks.size() > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) return;
    const auto at = static_cast<std::ptrdiff_t>(best);
    parts[best].rank = ranks[best];
    parts.erase(parts.begin() + at + 1);
    ranks.erase(ranks.begin() + at);
    if (best > 0) ranks[best - 1] = pair(best - 1);
    if (best < ranks.size()) ranks[best] = pair(best);
  }
}

}  // namespace

RankedMerges merges_of_ranks(std::span<const std::string_view> tokens) {
  if (tokens.size() >= BpeModel::kIdLimit) throw std::invalid_argument("too many tokens");
  std::array<std::uint32_t, 256> byte_ranks;
  byte_ranks.fill(kNoRank);
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    if (tokens[rank].size() == 1) {
      byte_ranks[static_cast<std::uint8_t>(tokens[rank][0])] = static_cast<std::uint32_t>(rank);
    }
  }
  RankedMerges result;
  FoundMerges found(tokens.size());
  std::optional<ByBytes> by_bytes;
  std::vector<Part> parts;
  std::vector<std::uint32_t> ranks;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string_view token = tokens[rank];
    if (token.size() < 2) continue;
    if (token.size() > kMaxRankedToken) {
      throw std::invalid_argument("the token of rank " + std::to_string(rank) + " has " +
                                  std::to_string(token.size()) + " bytes");
    }
    const auto product = static_cast<std::uint32_t>(rank);
    parts.clear();
    bool whole = true;
    for (std::size_t i = 0; i < token.size(); ++i) {
      parts.push_back(
          {byte_ranks[static_cast<std::uint8_t>(token[i])], static_cast<std::uint32_t>(i)});
      whole &= parts.back().rank != kNoRank;
    }
    if (whole) {
      // Ranks16 below this one come first in any order of merging, and their merges are known.
      merge_to_two(parts, ranks,
                   [&](std::size_t i) { return found(parts[i].rank, parts[i + 1].rank); });
    }
    if (whole && parts.size() > 2) {
      if (!by_bytes) by_bytes.emplace(tokens);
      merge_to_two(parts, ranks, [&](std::size_t i) {
        const std::size_t end = i + 2 < parts.size() ? parts[i + 2].begin : token.size();
        return (*by_bytes)(token.substr(parts[i].begin, end - parts[i].begin));
      });
    }
    if (whole && parts.size() == 2) {
      result.merges.push_back({parts[0].rank, parts[1].rank, product});
      found.add(result.merges.back());
    } else {
      result.unmergeable.push_back(product);
    }
  }
  return result;
}

}  // namespace tokpack

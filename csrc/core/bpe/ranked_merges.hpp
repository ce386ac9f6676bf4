// The merge rules behind a vocabulary of which only ranks are known, as in tiktoken's files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/bpe/bpe_model.hpp"

namespace tokpack {

struct RankedMerges {
  std::vector<Merge> merges;               // sorted by the rank of their product
  std::vector<std::uint32_t> unmergeable;  // tokens that merging does not make of their own bytes
};

inline constexpr std::size_t kMaxRankedToken = 4096;  // bytes

// `tokens`: the bytes of each rank, each once; empty where there is no token.
//
// tiktoken merges the two neighbours whose concatenation has the lowest rank. Each token has one
// pair of halves: the last two parts that this makes of its own bytes. Two neighbours that form a
// token are always that pair, whatever stands around them, since no merge has crossed their ends.
//
// Throws std::invalid_argument for a token that is too long, and for too many.
RankedMerges merges_of_ranks(std::span<const std::string_view> tokens);

}  // namespace tokpack

// The order of samples of the Megatron family: numpy's shuffle, sample indices, greedy blends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/mt19937.hpp"

namespace tokpack {

// numpy's RandomState.shuffle of a one-dimensional array: the same permutation, the same draws.
void numpy_shuffle(Mt19937& random, std::span<std::uint32_t> values);
void numpy_shuffle(Mt19937& random, std::span<std::uint64_t> values);

// Where samples begin: row k of `rows` [samples + 1, 2] is a position in `documents` and an offset
// in tokens into the sequence there. A sample is `seq_length` tokens; with `extra`, one more, which
// is the first of the next sample too. `lengths` points to int32, aligned or not.
// Returns the rows that the tokens suffice for. Every document must have a length.
std::size_t megatron_sample_index(const std::uint8_t* lengths,
                                  std::span<const std::int32_t> documents, std::int64_t seq_length,
                                  bool extra, std::span<std::int32_t> rows);
std::size_t megatron_sample_index(const std::uint8_t* lengths,
                                  std::span<const std::int32_t> documents, std::int64_t seq_length,
                                  bool extra, std::span<std::int64_t> rows);

// For each sample, the dataset that lacks most of its share, and that dataset's next sample.
// No dataset gives more than limits[i] samples, where limits are given. `fused` rounds the lack
// once, as a compiler does that contracts to a fused multiply-add. Returns the samples placed:
// fewer than there is room for once every limit is reached.
std::size_t megatron_blend(std::span<const double> weights, std::span<const std::int64_t> limits,
                           bool fused, std::span<std::int16_t> datasets,
                           std::span<std::int64_t> samples);

}  // namespace tokpack

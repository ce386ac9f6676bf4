// Samples in the order that a sample index and a shuffle index list, as those of Megatron do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/samples/gather_tokens.hpp"

namespace tokpack {

// The arrays of such an index. They may come from a file, so each value is checked before it is
// used.
struct ListedSamples {
  std::span<const unsigned char> lengths;   // int32 a sequence, at any address
  std::span<const std::int32_t> documents;  // sequences, one after the other
  bool extra;                               // a sample ends one token behind where the next begins
};

// Appends the rows of the samples s = shuffle[k], for each k in `samples`, and sets counts[i] to
// the number of rows of samples[i]. Sample s begins in the sequence documents[index[2 s]], at its
// token index[2 s + 1], and ends where sample s + 1 begins. Returns the number of samples, or the
// first i for which entries are out of range.
template <class Index, class Shuffle>
std::size_t listed_rows(const ListedSamples& listed, std::span<const Index> index,
                        std::span<const Shuffle> shuffle, std::span<const std::int64_t> samples,
                        std::vector<Row>& rows, std::span<std::int64_t> counts);

}  // namespace tokpack

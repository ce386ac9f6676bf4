// The rows of samples that an index lists, as those of the Megatron family are.
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

// Appends the rows of samples shuffle[k], and sets counts[i] to how many samples[i] has. A sample
// begins at documents[index[2 s]], token index[2 s + 1], and ends where sample s + 1 begins.
// Returns the number of samples; less where that one has entries that are out of range.
template <class Index, class Shuffle>
std::size_t listed_rows(const ListedSamples& listed, std::span<const Index> index,
                        std::span<const Shuffle> shuffle, std::span<const std::int64_t> samples,
                        std::vector<Row>& rows, std::span<std::int64_t> counts);

}  // namespace tokpack

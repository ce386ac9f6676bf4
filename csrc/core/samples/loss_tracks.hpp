// What stands beside the tokens of a dataset and says what their labels count: a mask, weights, or
// labels of their own.
#pragma once

#include <cstdint>
#include <span>

namespace tokpack {

// A track has one value for each token, the raw bits of its type widened to 64. The value of a
// token is about the label that this token is: that of input i stands at i + 1.
enum class LossTrack : std::uint8_t {
  kMask,     // 0: the label does not count
  kWeights,  // float16: how much it counts
  kLabels,   // what is predicted in place of the token; below 0: nothing
};

// Applies the values of one sample, length + 1 of them, to its loss mask of `length`. With kLabels
// the labels are written to `labels`, length + 1, 0 for those that do not count. Returns false for
// a weight that is not a finite number. REQUIRES: out.size() + 1 values, and as many labels, or
// none.
bool apply_track(LossTrack kind, std::span<const std::int64_t> values, std::span<float> loss_mask,
                 std::span<std::int64_t> labels);

}  // namespace tokpack

// Which dataset gives sample g of a weighted blend: in closed form, with exact shares everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tokpack {

// The samples are split in two by a Huffman tree over the weights: of the first k samples that
// reach a node, floor(k * f + 1/2) go left, f being the left weight's share in 64 fractional bits.
// The rounding error of a node shrinks on the way down, so that a dataset's count stays within
// 1.68 samples of its share at every prefix (half the sum of the reciprocal Fibonacci numbers);
// random weights stay below 1.5.
class BlendOrder {
 public:
  struct Place {
    std::uint32_t dataset;
    std::uint64_t sample;  // number of the dataset's samples before this one
  };

  static constexpr std::uint64_t kMaxSamples = std::uint64_t{1} << 62;

  // Only the ratios of the weights count. Throws std::invalid_argument for no weight, for one that
  // is not a positive finite number, and for one too small beside the largest (2^-40 is not).
  explicit BlendOrder(std::span<const double> weights);

  std::size_t datasets() const { return datasets_; }

  // g < kMaxSamples.
  Place locate(std::uint64_t g) const;

  // How many of the first g samples, at most kMaxSamples, belong to each dataset.
  std::vector<std::uint64_t> counts(std::uint64_t g) const;

 private:
  // A child is the number of a node, or ~dataset. Parents come after their children.
  struct Node {
    std::uint64_t left_share;
    std::int32_t child[2];
  };

  std::size_t datasets_;
  std::vector<Node> nodes_;
  std::int32_t root_ = 0;
};

}  // namespace tokpack

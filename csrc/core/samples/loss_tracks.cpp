#include "core/samples/loss_tracks.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace tokpack {
namespace {

constexpr std::uint32_t kHalfExponent = 0x7C00;

// The bits of a float16 as a float, which has all of its finite values: the exponent counts from
// another zero, so that a product by 2^112 sets it right, for subnormal numbers too.
float from_half(std::uint32_t bits) {
  const float magnitude = std::bit_cast<float>((bits & 0x7FFF) << 13) * 0x1p112F;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

void apply_mask(std::span<const std::int64_t> values, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = values[i + 1] == 0 ? 0.0F : out[i];
}

bool apply_weights(std::span<const std::int64_t> values, std::span<float> out) {
  bool finite = true;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto bits = static_cast<std::uint32_t>(values[i + 1]);
    finite &= (bits & kHalfExponent) != kHalfExponent;
    out[i] *= from_half(bits);
  }
  return finite;
}

void apply_labels(std::span<const std::int64_t> values, std::span<float> out,
                  std::span<std::int64_t> labels) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    labels[i] = std::max(values[i], std::int64_t{0});
  }
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = values[i + 1] < 0 ? 0.0F : out[i];
}

}  // namespace

bool apply_track(LossTrack kind, std::span<const std::int64_t> values, std::span<float> loss_mask,
                 std::span<std::int64_t> labels) {
  if (kind == LossTrack::kWeights) return apply_weights(values, loss_mask);
  if (kind == LossTrack::kMask) {
    apply_mask(values, loss_mask);
  } else {
    apply_labels(values, loss_mask, labels);
  }
  return true;
}

}  // namespace tokpack

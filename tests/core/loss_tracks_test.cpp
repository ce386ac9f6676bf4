// Tracks applied to arrays of the exact size, for the sanitizers, and every float16 that there is.
#include "core/samples/loss_tracks.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"

namespace tokpack::test {
namespace {

// What IEEE 754 says of a float16 of these bits.
double half(std::int64_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const auto exponent = static_cast<int>(bits >> 10 & 31);
  const auto fraction = static_cast<double>(bits & 1023);
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024.0 + fraction, exponent - 25);
}

void test_every_weight() {
  for (std::int64_t bits = 0; bits < 1 << 16; ++bits) {
    const std::vector<std::int64_t> values{0x7C00, bits};  // the first is no label's
    float mask = 1.0F;
    const bool finite = apply_track(LossTrack::kWeights, values, {&mask, 1}, {});
    CHECK(finite == ((bits >> 10 & 31) != 31));
    if (finite) CHECK(static_cast<double>(mask) == half(bits));
  }
}

void test_masks_and_labels() {
  std::mt19937_64 random(3);
  for (int n = 0; n < 500; ++n) {
    const std::size_t length = random() % 40;
    const auto values = std::make_unique<std::int64_t[]>(length + 1);
    const auto labels = std::make_unique<std::int64_t[]>(length + 1);
    const auto mask = std::make_unique<float[]>(length);
    for (std::size_t i = 0; i <= length; ++i) {
      values[i] = static_cast<std::int64_t>(random() % 5) - 2;
    }
    const bool is_mask = n % 2 == 0;
    std::fill_n(mask.get(), length, 0.5F);
    std::fill_n(labels.get(), length + 1, -7);
    const std::span<std::int64_t> out(labels.get(), is_mask ? 0 : length + 1);
    CHECK(apply_track(is_mask ? LossTrack::kMask : LossTrack::kLabels, {values.get(), length + 1},
                      {mask.get(), length}, out));
    for (std::size_t i = 0; i < length; ++i) {
      const bool counts = is_mask ? values[i + 1] != 0 : values[i + 1] >= 0;
      CHECK(mask[i] == (counts ? 0.5F : 0.0F));
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      CHECK(labels[i] == std::max(values[i], std::int64_t{0}));
    }
  }
}

}  // namespace
}  // namespace tokpack::test

int main() {
  tokpack::test::test_every_weight();
  tokpack::test::test_masks_and_labels();
  return tokpack::test::report();
}

#include "core/samples/blend_order.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>

#include "core/base/multiply_128.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kMaxDatasets = std::size_t{1} << 20;
constexpr std::uint64_t kHalf = std::uint64_t{1} << 63;

// k * share + 1/2 as a 64.64 fixed point number.
Uint128 rounded_share(std::uint64_t k, std::uint64_t share) {
  Uint128 product = multiply_128(k, share);
  product.low += kHalf;
  product.high += product.low < kHalf;
  return product;
}

// floor(part * 2^64 / whole), part < whole < 2^63.
std::uint64_t fraction(std::uint64_t part, std::uint64_t whole) {
  std::uint64_t quotient = 0;
  for (int bit = 0; bit < 64; ++bit) {
    part <<= 1;
    quotient <<= 1;
    if (part >= whole) {
      part -= whole;
      quotient |= 1;
    }
  }
  return quotient;
}

// The weights as integers in the same ratio, their sum below 2^63. Scaling by powers of two is
// exact, so no rounding mode and no contraction can change the result.
std::vector<std::uint64_t> to_integers(std::span<const double> weights) {
  double largest = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] <= 0) {
      throw std::invalid_argument("weight " + std::to_string(i) + " is " +
                                  std::to_string(weights[i]) +
                                  "; a weight is a finite number above zero");
    }
    largest = std::max(largest, weights[i]);
  }
  int shift = 62;
  for (std::size_t n = 1; n < weights.size(); n *= 2) --shift;
  const int scale = shift - std::ilogb(largest);
  std::vector<std::uint64_t> integers;
  integers.reserve(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    integers.push_back(static_cast<std::uint64_t>(std::ldexp(weights[i], scale - 1)));
    if (integers.back() == 0) {
      throw std::invalid_argument("weight " + std::to_string(i) +
                                  " is too small beside the largest one to be kept");
    }
  }
  return integers;
}

}  // namespace

BlendOrder::BlendOrder(std::span<const double> weights) : datasets_(weights.size()) {
  if (weights.empty()) throw std::invalid_argument("a blend needs at least one weight");
  if (weights.size() > kMaxDatasets) {
    throw std::invalid_argument("a blend of " + std::to_string(weights.size()) +
                                " datasets; the limit is 2^20");
  }
  // (weight, order of appearance, child): equal weights are taken in the order of appearance.
  using Entry = std::tuple<std::uint64_t, std::size_t, std::int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const std::vector<std::uint64_t> integers = to_integers(weights);
  for (std::size_t i = 0; i < integers.size(); ++i) {
    queue.emplace(integers[i], i, ~static_cast<std::int32_t>(i));
  }
  while (queue.size() > 1) {
    const auto [right_weight, right_order, right] = queue.top();
    queue.pop();
    const auto [left_weight, left_order, left] = queue.top();
    queue.pop();
    const std::uint64_t sum = left_weight + right_weight;
    nodes_.push_back({fraction(left_weight, sum), {left, right}});
    queue.emplace(sum, datasets_ + nodes_.size(), static_cast<std::int32_t>(nodes_.size() - 1));
  }
  root_ = std::get<2>(queue.top());
}

BlendOrder::Place BlendOrder::locate(std::uint64_t g) const {
  std::int32_t node = root_;
  while (node >= 0) {
    const Node& split = nodes_[static_cast<std::size_t>(node)];
    const Uint128 before = rounded_share(g, split.left_share);
    // Sample g goes left when the count of the first g + 1 is one more, which is this carry.
    const bool right = before.low + split.left_share >= before.low;
    g = right ? g - before.high : before.high;
    node = split.child[right];
  }
  return {static_cast<std::uint32_t>(~node), g};
}

std::vector<std::uint64_t> BlendOrder::counts(std::uint64_t g) const {
  std::vector<std::uint64_t> result(datasets_);
  std::vector<std::uint64_t> reached(nodes_.size());
  const auto give = [&](std::int32_t child, std::uint64_t count) {
    if (child >= 0) {
      reached[static_cast<std::size_t>(child)] = count;
    } else {
      result[static_cast<std::size_t>(~child)] = count;
    }
  };
  give(root_, g);
  for (std::size_t n = nodes_.size(); n-- > 0;) {
    const std::uint64_t left = rounded_share(reached[n], nodes_[n].left_share).high;
    give(nodes_[n].child[0], left);
    give(nodes_[n].child[1], reached[n] - left);
  }
  return result;
}

}  // namespace tokpack

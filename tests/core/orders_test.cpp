// The stateless order where Python cannot look: both 128-bit products, and arrays of the exact
// size for the sanitizers. That the orders are right is tested from Python, against their twin.
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"
#include "core/base/multiply_128.hpp"
#include "core/samples/blend_order.hpp"
#include "core/samples/document_order.hpp"
#include "core/samples/permutation.hpp"

namespace tokpack::test {
namespace {

void test_products() {
  // (2^64 - 1)^2 = 2^128 - 2^65 + 1
  static_assert(multiply_128_portable(~0ull, ~0ull).high == ~0ull - 1);
  static_assert(multiply_128_portable(~0ull, ~0ull).low == 1);
  std::mt19937_64 random(1);
  for (int n = 0; n < 100000; ++n) {
    const std::uint64_t a = random() >> random() % 64, b = random() >> random() % 64;
    const Uint128 fast = multiply_128(a, b), portable = multiply_128_portable(a, b);
    CHECK(fast.high == portable.high && fast.low == portable.low);
  }
}

void test_batches() {
  std::mt19937_64 random(2);
  for (int n = 0; n < 2000; ++n) {
    const std::uint64_t size = (random() >> (2 + random() % 62)) + 1;
    const std::uint64_t key = random();
    const Permutation order(size, key);
    std::vector<std::uint64_t> values(random() % (Permutation::kBatch + 1));
    for (std::uint64_t& value : values) value = random() % size;
    const std::vector<std::uint64_t> before = values;
    order.batch(values);
    std::vector<std::uint64_t> same = before;
    Permutation(size, key, Level::kScalar).batch(same);
    CHECK(same == values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(values[i] == order.at(before[i]));
      CHECK(order.inverse(values[i]) == before[i]);
    }
  }
}

void test_documents() {
  std::mt19937_64 random(3);
  std::vector<DocumentOrder::Piece> pieces;
  for (int n = 0; n < 300; ++n) {
    const std::size_t count = random() % 300;
    const auto bytes = std::make_unique<unsigned char[]>(count * 4 + 1);
    for (std::size_t i = 0; i < count; ++i) {
      const auto length = static_cast<std::int32_t>(random() % 3 == 0 ? 0 : random() % 100);
      std::memcpy(bytes.get() + 1 + i * 4, &length, 4);
    }
    const auto seq = static_cast<std::int64_t>(random() % 80 + 1);
    const DocumentOrder order(bytes.get() + 1, count, seq, n % 2, random());
    for (std::int64_t j = 0; j < order.samples(); ++j) {
      order.locate(j, pieces);
      std::int64_t sum = 0;
      for (const auto& piece : pieces) sum += piece.length;
      CHECK(sum == order.sample_tokens());
    }
  }
}

void test_blends() {
  std::mt19937_64 random(4);
  for (std::size_t datasets : {1u, 2u, 3u, 100u, 5000u}) {
    std::vector<double> weights;
    for (std::size_t i = 0; i < datasets; ++i) {
      weights.push_back(static_cast<double>(random() % 1000000 + 1));
    }
    const BlendOrder order(weights);
    const std::uint64_t begin = random() >> 3;
    std::vector<std::uint64_t> counts = order.counts(begin);
    for (std::uint64_t g = begin; g < begin + 1000; ++g) {
      const BlendOrder::Place place = order.locate(g);
      CHECK(place.dataset < datasets);
      CHECK(place.sample == counts[place.dataset]++);
    }
    CHECK(counts == order.counts(begin + 1000));
  }
}

}  // namespace
}  // namespace tokpack::test

int main() {
  tokpack::test::test_products();
  tokpack::test::test_batches();
  tokpack::test::test_documents();
  tokpack::test::test_blends();
  return tokpack::test::report();
}

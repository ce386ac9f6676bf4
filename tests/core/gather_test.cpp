// Gathering from arrays of the exact size, for the sanitizers: right rows, and rows and indices
// that lie in every way.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "core/samples/document_order.hpp"
#include "core/samples/gather_tokens.hpp"
#include "core/samples/listed_samples.hpp"
#include "memory.hpp"

namespace tokpack::test {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

// Bytes at an odd address that end where their allocation ends.
class Odd {
 public:
  template <class T>
  explicit Odd(const std::vector<T>& values)
      : bytes_(new unsigned char[values.size() * sizeof(T) + 1]) {
    if (!values.empty()) std::memcpy(bytes_.get() + 1, values.data(), values.size() * sizeof(T));
  }
  const unsigned char* data() const { return bytes_.get() + 1; }

 private:
  std::unique_ptr<unsigned char[]> bytes_;
};

template <class T>
struct File {
  std::vector<T> tokens;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> pointers;

  // Pointers count bytes of a .bin whose tokens have `token_bytes`.
  explicit File(std::mt19937_64& random, std::size_t token_bytes = sizeof(T)) {
    const std::size_t count = random() % 40 + 1;
    for (std::size_t i = 0; i < count; ++i) {
      lengths.push_back(static_cast<std::int32_t>(random() % 4 == 0 ? 0 : random() % 150));
      pointers.push_back(static_cast<std::int64_t>(tokens.size() * token_bytes));
      for (std::int32_t k = 0; k < lengths.back(); ++k) tokens.push_back(static_cast<T>(random()));
    }
  }
};

std::int64_t below(std::mt19937_64& random, std::int64_t limit) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
}

template <class T>
void test_right_rows(TokenType type) {
  std::mt19937_64 random(static_cast<std::uint64_t>(type));
  for (const Level level : levels()) {
    for (int n = 0; n < 60; ++n) {
      const std::size_t token_bytes = n % 2 ? sizeof(T) : std::size_t{1} << random() % 4;
      const File<T> file(random, token_bytes);
      const Odd tokens(file.tokens), lengths(file.lengths), pointers(file.pointers);
      const TokenFile gather({tokens.data(), file.tokens.size() * sizeof(T)}, type, lengths.data(),
                             pointers.data(), file.lengths.size(), level, {nullptr, 0, 0},
                             token_bytes);
      std::vector<Row> rows;
      std::vector<std::int64_t> expected;
      for (std::size_t r = random() % 50; r > 0; --r) {
        const std::int64_t sequence = below(random, static_cast<std::int64_t>(file.lengths.size()));
        const std::int64_t length = file.lengths[static_cast<std::size_t>(sequence)];
        const std::int64_t first = below(random, length + 1);
        rows.push_back({sequence, first, below(random, length - first + 1)});
        const auto begin =
            static_cast<std::size_t>(file.pointers[static_cast<std::size_t>(sequence)] /
                                         static_cast<std::int64_t>(token_bytes) +
                                     first);
        for (std::int64_t k = 0; k < rows.back().count; ++k) {
          expected.push_back(file.tokens[begin + static_cast<std::size_t>(k)]);
        }
      }
      const auto width = static_cast<std::int64_t>(expected.size()) + 1 + below(random, 9);
      const auto out = std::make_unique<std::int64_t[]>(static_cast<std::size_t>(width));
      std::fill_n(out.get(), width, -7);
      std::vector<std::int64_t> targets(rows.size());
      const std::vector<std::int64_t> counts{static_cast<std::int64_t>(rows.size())}, places{0};
      const std::span<std::int64_t> text(out.get(), static_cast<std::size_t>(width));
      lay_out(rows, {counts, places, width}, targets, text);
      CHECK(gather.gather(rows, targets, text) == rows.size());
      expected.resize(static_cast<std::size_t>(width), 0);
      CHECK(std::equal(expected.begin(), expected.end(), out.get()));
    }
  }
}

std::int64_t odd_number(std::mt19937_64& random) {
  const std::int64_t values[] = {-1, 0, 1, 2, 3, 7, 100, kMax, kMin, kMax - 1, kMax / 2, 1 << 30};
  return random() % 3 == 0 ? static_cast<std::int64_t>(random())
                           : values[random() % std::size(values)];
}

// Whatever the rows and the index say, nothing outside of them is touched.
void test_lies() {
  std::mt19937_64 random(7);
  for (int n = 0; n < 4000; ++n) {
    const std::size_t token_bytes = std::size_t{1} << random() % 4;
    File<std::uint16_t> file(random, token_bytes);
    for (std::size_t lie = random() % 3; lie > 0; --lie) {
      const std::size_t where = random() % file.lengths.size();
      if (random() % 2) file.pointers[where] = odd_number(random);
      if (random() % 2) file.lengths[where] = static_cast<std::int32_t>(odd_number(random));
    }
    const Odd tokens(file.tokens), lengths(file.lengths), pointers(file.pointers);
    const TokenFile gather({tokens.data(), file.tokens.size() * 2}, TokenType::kUint16,
                           lengths.data(), pointers.data(), file.lengths.size(), best_level(),
                           {nullptr, 0, 0}, token_bytes);
    std::vector<Row> rows;
    std::vector<std::int64_t> targets;
    for (std::size_t r = random() % 20; r > 0; --r) {
      rows.push_back({below(random, 45), below(random, 9), below(random, 9)});
      targets.push_back(below(random, 60));
    }
    if (!rows.empty()) {
      Row& row = rows[random() % rows.size()];
      const std::uint64_t kind = random() % 5;
      if (kind == 0) row.sequence = odd_number(random);
      if (kind == 1) row.first = odd_number(random);
      if (kind == 2) row.count = odd_number(random);
      if (kind == 3) targets[random() % targets.size()] = odd_number(random);
    }
    const std::size_t room = random() % 64;
    const auto out = std::make_unique<std::int64_t[]>(room);
    CHECK(gather.gather(rows, targets, {out.get(), room}) <= rows.size());
  }
}

template <class Function>
bool refuses(const Function& function) {
  try {
    function();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void test_layouts_that_do_not_fit() {
  std::mt19937_64 random(8);
  int refused = 0;
  for (int n = 0; n < 4000; ++n) {
    std::vector<Row> rows(random() % 5);
    for (Row& row : rows) row.count = random() % 9 ? below(random, 4) : odd_number(random);
    std::vector<std::int64_t> counts(random() % 4), places(counts.size()), targets(rows.size());
    for (std::int64_t& count : counts) count = random() % 9 ? below(random, 3) : odd_number(random);
    for (std::int64_t& place : places) place = random() % 9 ? below(random, 4) : odd_number(random);
    const std::size_t room = random() % 30;
    const auto out = std::make_unique<std::int64_t[]>(room);
    const std::int64_t width = random() % 9 ? 5 : odd_number(random);
    const std::int64_t multiple =
        random() % 9 ? static_cast<std::int64_t>(random() % 3 + 1) : odd_number(random);
    const Layout layout{counts, places, width, multiple};
    refused += refuses([&] { lay_out(rows, layout, targets, {out.get(), room}); });
  }
  CHECK(refused > 1000 && refused < 4000);
}

void test_many_are_each() {
  std::mt19937_64 random(9);
  for (int n = 0; n < 200; ++n) {
    std::vector<std::int32_t> lengths(random() % 500 + 1);
    for (std::int32_t& length : lengths) {
      length = static_cast<std::int32_t>(random() % 3 == 0 ? 0 : random() % 60);
    }
    lengths[0] = 300;
    const Odd bytes(lengths);
    const DocumentOrder order(bytes.data(), lengths.size(),
                              static_cast<std::int64_t>(random() % 200 + 1), n % 2, random());
    std::vector<std::int64_t> samples(random() % 40);
    for (std::int64_t& sample : samples) sample = below(random, order.samples());
    std::vector<DocumentOrder::Piece> all, one;
    std::vector<std::int64_t> counts(samples.size());
    order.locate_many(samples, all, counts);
    auto next = all.begin();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      order.locate(samples[i], one);
      CHECK(static_cast<std::int64_t>(one.size()) == counts[i]);
      for (const DocumentOrder::Piece& piece : one) {
        CHECK(next->document == piece.document && next->offset == piece.offset &&
              next->length == piece.length);
        ++next;
      }
    }
    CHECK(next == all.end());
  }
}

// An index of another dataset, or of none.
template <class Index, class Shuffle>
void test_listed_lies() {
  std::mt19937_64 random(10);
  int right = 0;
  for (int n = 0; n < 3000; ++n) {
    const std::vector<std::int32_t> lengths(5, 10);
    const Odd bytes(lengths);
    std::vector<std::int32_t> documents{4, 0, 3, 1, 2};
    std::vector<Index> index{0, 0, 1, 2, 2, 4, 3, 6, 4, 9};
    std::vector<Shuffle> shuffle{3, 0, 2, 1};
    if (random() % 3 == 0) {
      documents[random() % 5] = static_cast<std::int32_t>(odd_number(random));
    }
    if (random() % 3 == 0) index[random() % index.size()] = static_cast<Index>(odd_number(random));
    if (random() % 3 == 0) shuffle[random() % 4] = static_cast<Shuffle>(odd_number(random));
    const std::vector<std::int64_t> samples{1, 0, 3, 2, random() % 4 ? 1 : odd_number(random)};
    std::vector<Row> rows;
    std::vector<std::int64_t> counts(samples.size());
    const ListedSamples listed{{bytes.data(), 20}, documents, true};
    const std::size_t done = listed_rows(listed, std::span<const Index>(index),
                                         std::span<const Shuffle>(shuffle), samples, rows, counts);
    CHECK(done <= samples.size());
    right += done == samples.size();
  }
  CHECK(right > 300);
}

}  // namespace
}  // namespace tokpack::test

int main() {
  using tokpack::TokenType;
  namespace test = tokpack::test;
  test::test_right_rows<std::uint8_t>(TokenType::kUint8);
  test::test_right_rows<std::int8_t>(TokenType::kInt8);
  test::test_right_rows<std::int16_t>(TokenType::kInt16);
  test::test_right_rows<std::uint16_t>(TokenType::kUint16);
  test::test_right_rows<std::int32_t>(TokenType::kInt32);
  test::test_right_rows<std::int64_t>(TokenType::kInt64);
  test::test_lies();
  test::test_layouts_that_do_not_fit();
  test::test_many_are_each();
  test::test_listed_lies<std::int32_t, std::uint32_t>();
  test::test_listed_lies<std::int64_t, std::int64_t>();
  return test::report();
}

// Packing where Python cannot look: arrays of the exact size for the sanitizers, and damaged ones.
// That samples are packed right is tested from Python, against their twin.
#include "core/samples/packing.hpp"

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"
#include "core/samples/best_fit.hpp"

namespace tokpack::test {
namespace {

void test_number_sets() {
  std::mt19937_64 random(1);
  for (const std::size_t size : {1u, 63u, 64u, 65u, 4096u, 4097u, 300000u}) {
    NumberSet set(size);
    std::vector<bool> twin(size, false);
    for (int n = 0; n < 3000; ++n) {
      const std::size_t number = random() % 8 == 0 ? size - 1 : random() % size;
      if (random() % 2 == 0) {
        set.add(number);
        twin[number] = true;
      } else {
        set.remove(number);
        twin[number] = false;
      }
      const std::size_t from = random() % size;
      std::size_t found = from;
      while (found < size && found < from + 5000 && !twin[found]) ++found;
      if (found == from + 5000) continue;
      const std::int64_t expected =
          found == size ? NumberSet::kNone : static_cast<std::int64_t>(found);
      CHECK(set.at_least(from) == expected);
    }
  }
}

struct Case {
  std::unique_ptr<unsigned char[]> bytes;
  PackingInput input;
};

Case make_case(std::mt19937_64& random) {
  const std::size_t count = random() % 300;
  auto bytes = std::make_unique<unsigned char[]>(count * 4 + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const auto length =
        static_cast<std::int32_t>(random() % 3 == 0 ? random() % 3 : random() % 200);
    std::memcpy(bytes.get() + 1 + i * 4, &length, 4);
  }
  const auto extra = static_cast<std::int64_t>(random() % 2);
  const auto seq_length = static_cast<std::int64_t>(random() % 80 + 1);
  const unsigned char* lengths = bytes.get() + 1;
  return {std::move(bytes), {lengths, count, seq_length, extra, random()}};
}

template <class T>
std::vector<T> exactly(const std::vector<T>& values) {  // no spare capacity for a sanitizer to miss
  return {values.begin(), values.end()};
}

void test_samples() {
  std::mt19937_64 random(2);
  std::vector<Packing::Piece> pieces;
  for (int n = 0; n < 400; ++n) {
    const Case one = make_case(random);
    const PackedSamples packed = pack(one.input, n % 3 != 0);
    const auto entries = exactly(packed.entries);
    const auto starts = exactly(packed.starts);
    const auto windows = exactly(packed.windows);
    const Packing packing(one.input, entries, starts, windows);
    std::vector<std::int64_t> samples(static_cast<std::size_t>(packing.samples()));
    for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<std::int64_t>(i);
    std::vector<std::int64_t> counts(samples.size());
    pieces.clear();
    packing.locate(samples, pieces, counts);
    std::int64_t placed = 0;
    std::size_t next = 0;
    for (const std::int64_t count : counts) {
      std::int64_t filled = 0;
      for (std::int64_t i = 0; i < count; ++i, ++next) {
        const Packing::Piece& piece = pieces[next];
        filled += piece.length;
        CHECK(piece.length >= PackingInput::kLeast);
        CHECK(piece.offset + piece.length <=
              one.input.length_of(static_cast<std::uint64_t>(piece.document)));
      }
      CHECK(count > 0 && filled <= one.input.capacity());
      placed += filled;
    }
    CHECK(next == pieces.size());
    CHECK(placed == packed.totals.placed);
  }
}

void test_damage() {
  std::mt19937_64 random(3);
  std::vector<Packing::Piece> pieces;
  for (int n = 0; n < 3000; ++n) {
    const Case one = make_case(random);
    PackedSamples packed = pack(one.input, true);
    const auto any = [&] { return static_cast<std::int64_t>(random() >> random() % 64); };
    for (std::uint64_t k = random() % 3; k < 3; ++k) {
      auto& window = packed.windows[random() % packed.windows.size()];
      const auto what = random() % 5;
      if (what == 0) window.first = any();
      if (what == 1) window.first_full = any();
      if (what == 2) window.full_entry = any();
      if (what == 3 && !packed.starts.empty())
        packed.starts[random() % packed.starts.size()] = any();
      if (what == 4 && !packed.entries.empty()) {
        packed.entries[random() % packed.entries.size()] = static_cast<std::uint16_t>(random());
      }
    }
    const auto entries = exactly(packed.entries);
    const auto starts = exactly(packed.starts);
    try {
      const Packing packing(one.input, entries, starts, packed.windows);
      for (std::int64_t sample = 0; sample < packing.samples() && sample < 200; ++sample) {
        std::int64_t count = 0;
        pieces.clear();
        try {
          packing.locate({&sample, 1}, pieces, {&count, 1});
        } catch (const std::exception&) {
          continue;
        }
        for (const Packing::Piece& piece : pieces) {
          CHECK(piece.offset + piece.length <=
                one.input.length_of(static_cast<std::uint64_t>(piece.document)));
        }
      }
    } catch (const std::exception&) {
    }
  }
}

}  // namespace
}  // namespace tokpack::test

int main() {
  tokpack::test::test_number_sets();
  tokpack::test::test_samples();
  tokpack::test::test_damage();
  return tokpack::test::report();
}

// The values of tests/golden/orders.txt, on whatever compiler and processor this is built for.
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "check.hpp"
#include "core/samples/blend_order.hpp"
#include "core/samples/document_order.hpp"
#include "core/samples/megatron_order.hpp"
#include "core/samples/packing.hpp"
#include "core/samples/permutation.hpp"

namespace tokpack::test {
namespace {

using Numbers = std::vector<std::uint64_t>;

struct Line {
  std::string what;
  std::vector<std::string> words;  // before @ and =
  std::uint64_t begin = 0;         // what follows @
  Numbers values;                  // what follows =
};

Line parse(const std::string& text) {
  Line line;
  std::istringstream stream(text);
  stream >> line.what;
  std::string word;
  while (stream >> word && word != "=") {
    if (word == "@") {
      stream >> line.begin;
    } else {
      line.words.push_back(word);
    }
  }
  for (std::uint64_t value; stream >> value;) line.values.push_back(value);
  return line;
}

Numbers numbers(const Line& line) {
  Numbers result;
  for (const std::string& word : line.words) result.push_back(std::stoull(word));
  return result;
}

std::vector<double> weights(const Line& line) {
  std::vector<double> result;
  for (const std::string& word : line.words) result.push_back(std::stod(word));
  return result;
}

Numbers permuted(const Line& line) {
  const Numbers given = numbers(line);
  const Permutation order(given[0], given[1]);
  Numbers result;
  for (std::size_t i = 0; i < line.values.size(); ++i) result.push_back(order.at(line.begin + i));
  return result;
}

Numbers blended(const Line& line) {
  const BlendOrder order(weights(line));
  Numbers result;
  for (std::uint64_t g = line.begin; result.size() < line.values.size(); ++g) {
    const BlendOrder::Place place = order.locate(g);
    result.insert(result.end(), {place.dataset, place.sample});
  }
  return result;
}

// Documents of i % modulus tokens.
std::vector<unsigned char> document_lengths(std::size_t documents, std::size_t modulus) {
  std::vector<unsigned char> lengths(documents * sizeof(std::int32_t));
  for (std::size_t i = 0; i < documents; ++i) {
    const auto length = static_cast<std::int32_t>(i % modulus);
    std::memcpy(lengths.data() + i * sizeof(length), &length, sizeof(length));
  }
  return lengths;
}

template <class Pieces>
Numbers flat(const Pieces& pieces) {
  Numbers result;
  for (const auto& piece : pieces) {
    for (const std::int64_t value : {piece.document, piece.offset, piece.length}) {
      result.push_back(static_cast<std::uint64_t>(value));
    }
  }
  return result;
}

Numbers located(const Line& line) {
  const Numbers given = numbers(line);
  const std::vector<unsigned char> lengths = document_lengths(given[0], given[1]);
  const DocumentOrder order(lengths.data(), given[0], static_cast<std::int64_t>(given[2]),
                            static_cast<std::int64_t>(given[3]), given[4]);
  std::vector<DocumentOrder::Piece> pieces;
  order.locate(static_cast<std::int64_t>(line.begin), pieces);
  return flat(pieces);
}

Numbers packed(const Line& line) {
  const Numbers given = numbers(line);
  const std::vector<unsigned char> lengths = document_lengths(given[0], given[1]);
  const PackingInput input{lengths.data(), given[0], static_cast<std::int64_t>(given[2]),
                           static_cast<std::int64_t>(given[3]), given[4]};
  const PackedSamples samples = pack(input, given[5] != 0);
  const Packing packing(input, samples.entries, samples.starts, samples.windows);
  const auto sample = static_cast<std::int64_t>(line.begin);
  std::int64_t count = 0;
  std::vector<Packing::Piece> pieces;
  packing.locate({&sample, 1}, pieces, {&count, 1});
  return flat(pieces);
}

// The sequences of samples from `begin` on: both of a pair, the first of them even.
Numbers paired(const Line& line) {
  Numbers key = numbers(line);  // seed, fingerprint, sequences from and to, epoch
  const std::uint64_t first = (key[2] + 1) / 2, count = key[3] / 2 - first;
  key.push_back(7);
  const Permutation order(count, mix(key));
  Numbers result;
  for (std::uint64_t sample = line.begin; result.size() < line.values.size(); ++sample) {
    result.push_back(2 * (first + order.at(sample / 2)) + sample % 2);
  }
  return result;
}

Numbers shuffled(const Line& line) {
  const Numbers given = numbers(line);
  Numbers values(given[1]);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i;
  Mt19937 random(static_cast<std::uint32_t>(given[0]));
  numpy_shuffle(random, std::span<std::uint64_t>(values));
  return values;
}

Numbers greedy(const Line& line, bool fused) {
  std::vector<std::int16_t> datasets(line.values.size());
  std::vector<std::int64_t> samples(line.values.size());
  megatron_blend(weights(line), {}, fused, datasets, samples);
  return {datasets.begin(), datasets.end()};
}

Numbers computed(const Line& line) {
  if (line.what == "mix") return {mix(numbers(line))};
  if (line.what == "permutation") return permuted(line);
  if (line.what == "blend") return blended(line);
  if (line.what == "documents") return located(line);
  if (line.what == "packing") return packed(line);
  if (line.what == "pairs") return paired(line);
  if (line.what == "shuffle") return shuffled(line);
  return greedy(line, line.what == "greedy-fused");
}

void test_vectors(const std::string& path) {
  std::ifstream file(path);
  std::size_t lines = 0;
  for (std::string text; std::getline(file, text);) {
    if (text.empty() || text[0] == '#') continue;
    const Line line = parse(text);
    const bool equal = computed(line) == line.values;
    if (!equal) std::cerr << "not equal: " << text << '\n';
    CHECK(equal);
    ++lines;
  }
  CHECK(lines >= 91);
}

}  // namespace
}  // namespace tokpack::test

int main(int argc, char** argv) {
  tokpack::test::test_vectors(argc > 1 ? argv[1] : TOKPACK_GOLDEN "/orders.txt");
  return tokpack::test::report();
}

// Signatures, clusters and phrases of documents against what their definitions say, word by word.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "core/documents/clusters.hpp"
#include "core/documents/ngrams.hpp"
#include "core/documents/phrases.hpp"
#include "core/documents/sketch.hpp"
#include "core/documents/words.hpp"
#include "core/documents/xxh3.hpp"

namespace tokpack::test {
namespace {

// Tokens that end where their allocation ends.
template <class T>
class Exactly {
 public:
  template <class Tokens>
  explicit Exactly(const Tokens& tokens) : data_(new T[tokens.size()]), size_(tokens.size()) {
    std::transform(tokens.begin(), tokens.end(), data_.get(),
                   [](auto token) { return static_cast<T>(token); });
  }
  std::span<const T> span() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<T[]> data_;
  std::size_t size_;
};

using Tokens = std::vector<std::uint32_t>;

Tokens random_tokens(std::mt19937_64& random, std::size_t count, std::uint32_t vocabulary) {
  Tokens tokens(count);
  for (std::uint32_t& token : tokens) token = static_cast<std::uint32_t>(random()) % vocabulary;
  return tokens;
}

std::uint64_t plain_hash(const Tokens& tokens, std::size_t begin, std::size_t n) {
  std::uint64_t hash = 0;
  for (std::size_t i = begin; i < begin + n; ++i) hash = hash * kNgramBase + tokens[i] + 1;
  return hash;
}

std::set<std::uint64_t> plain_ngrams(const Tokens& tokens, std::size_t n) {
  std::set<std::uint64_t> hashes;
  n = std::min(n, tokens.size());
  for (std::size_t i = 0; n > 0 && i + n <= tokens.size(); ++i) {
    hashes.insert(plain_hash(tokens, i, n));
  }
  return hashes;
}

// The signature as sketch.hpp defines it, a round at a time over the set of n-grams.
std::vector<std::uint64_t> plain_bands(const Tokens& tokens, std::size_t n, std::size_t bands,
                                       std::size_t rows) {
  const std::size_t places = bands * rows;
  std::map<std::size_t, std::uint64_t> filled;
  const auto ngrams = plain_ngrams(tokens, n);
  if (ngrams.empty()) return std::vector<std::uint64_t>(bands, 0);
  for (std::uint64_t round = 0; filled.size() < places; ++round) {
    std::map<std::size_t, std::uint64_t> found;
    for (const std::uint64_t ngram : ngrams) {
      const std::uint64_t hash = mix_hash(ngram + round * 0x9E3779B97F4A7C15u);
      const std::uint64_t value = std::min<std::uint64_t>(hash & 0xFFFFFFFFu, 0xFFFFFFFEu);
      const std::size_t place =
          round < places ? static_cast<std::size_t>((hash >> 32) * places >> 32) : round - places;
      const auto [at, is_new] = found.try_emplace(place, value);
      if (!is_new) at->second = std::min(at->second, value);
    }
    filled.merge(found);
  }
  std::vector<std::uint64_t> result;
  for (std::size_t b = 0; b < bands; ++b) {
    std::uint64_t hash = 0;
    for (std::size_t r = 0; r < rows; ++r) hash = hash * kNgramBase + filled[b * rows + r] + 1;
    result.push_back(mix_hash(hash));
  }
  return result;
}

void test_bands() {
  std::mt19937_64 random(1);
  struct Shape {
    std::size_t ngram, bands, rows;
  };
  for (const Shape& shape : {Shape{5, 14, 8}, Shape{1, 1, 1}, Shape{13, 3, 5}, Shape{2, 40, 9}}) {
    Sketch sketch(shape.ngram, shape.bands, shape.rows);
    for (const std::size_t count : {0, 1, 4, 5, 6, 60, 255, 300, 700, 5000, 20000}) {
      for (const std::uint32_t vocabulary : {1u, 3u, 60000u}) {
        if (count == 20000 && vocabulary == 60000) continue;  // the plain twin takes seconds
        const Tokens tokens = random_tokens(random, count, vocabulary);
        std::vector<std::uint64_t> narrow(shape.bands), wide(shape.bands);
        sketch.band_hashes(Exactly<std::uint16_t>(tokens).span(), narrow);
        sketch.band_hashes(Exactly<std::uint32_t>(tokens).span(), wide);
        CHECK(narrow == wide);
        CHECK(wide == plain_bands(tokens, shape.ngram, shape.bands, shape.rows));
      }
    }
  }
  for (const Shape& shape : {Shape{0, 1, 1}, Shape{1, 0, 1}, Shape{1, 1, 0}, Shape{5, 4097, 1},
                             Shape{5, std::size_t{1} << 63, 2}}) {
    bool refused = false;
    try {
      Sketch(shape.ngram, shape.bands, shape.rows);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

// Lines of tests/golden/band_hashes.txt: tokens, modulus, n-gram, bands, rows = hashes, of the
// document whose token i is i * i * i % modulus.
void test_golden(const char* path) {
  std::ifstream file(path);
  int lines = 0;
  for (std::string text; std::getline(file, text);) {
    if (text.empty() || text[0] == '#') continue;
    std::istringstream line(text);
    std::size_t count, modulus, ngram, bands, rows;
    char equals;
    line >> count >> modulus >> ngram >> bands >> rows >> equals;
    std::vector<std::uint64_t> tokens(count), expected, hashes(bands);
    for (std::size_t i = 0; i < count; ++i) tokens[i] = i * i * i % modulus;
    for (std::uint64_t value; line >> value;) expected.push_back(value);
    Sketch(ngram, bands, rows).band_hashes(Exactly<std::uint32_t>(tokens).span(), hashes);
    CHECK(hashes == expected);
    ++lines;
  }
  CHECK(lines >= 5);
}

void test_equal_pairs() {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<std::uint64_t> keys(random() % 300);
    for (std::uint64_t& key : keys) key = mix_hash(random() % 50);
    std::vector<Key128> wide;
    for (const std::uint64_t key : keys) wide.push_back({key & ~std::uint64_t{7}, key & 7});
    for (const bool neighbours : {false, true}) {
      std::map<std::uint64_t, std::vector<std::int64_t>> groups;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        groups[keys[i]].push_back(static_cast<std::int64_t>(i));
      }
      std::vector<DocumentPair> expected;
      for (const auto& [key, group] : groups) {
        for (std::size_t i = 1; i < group.size(); ++i) {
          expected.push_back({group[0], group[i]});
          if (neighbours && i > 1) expected.push_back({group[i - 1], group[i]});
        }
      }
      for (const std::uint32_t parts : {1u, 3u, 64u}) {
        std::vector<DocumentPair> pairs, of_wide;
        for (std::uint32_t part = 0; part < parts; ++part) {
          equal_pairs(std::span<const std::uint64_t>(keys), part, parts, neighbours, pairs);
          equal_pairs(std::span<const Key128>(wide), part, parts, neighbours, of_wide);
        }
        CHECK(pairs == expected);
        CHECK(of_wide == expected);
      }
    }
  }
}

void test_clusters() {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    const std::int64_t count = static_cast<std::int64_t>(random() % 60 + 2);
    std::vector<DocumentPair> pairs(random() % 60);
    for (DocumentPair& pair : pairs) {
      pair.first = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count - 1));
      pair.second =
          pair.first + 1 +
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count - pair.first - 1));
    }
    std::vector<std::int64_t> smallest(static_cast<std::size_t>(count));
    std::iota(smallest.begin(), smallest.end(), 0);
    for (std::int64_t round = 0; round < count; ++round) {
      for (const DocumentPair& pair : pairs) {
        auto& a = smallest[static_cast<std::size_t>(pair.first)];
        auto& b = smallest[static_cast<std::size_t>(pair.second)];
        a = b = std::min(a, b);
      }
    }
    for (int order = 0; order < 3; ++order) {
      std::vector<std::int64_t> parents(static_cast<std::size_t>(count));
      std::iota(parents.begin(), parents.end(), 0);
      join_pairs(parents, pairs);
      for (std::size_t i = 0; i < parents.size(); ++i) {
        std::size_t root = i;
        while (parents[root] != static_cast<std::int64_t>(root)) {
          root = static_cast<std::size_t>(parents[root]);
        }
        CHECK(static_cast<std::int64_t>(root) == smallest[i]);
      }
      std::vector<DocumentPair> apart;
      separate_pairs(parents, pairs, apart);
      CHECK(apart.empty());
      std::shuffle(pairs.begin(), pairs.end(), random);
    }
  }
  const auto refused = [](std::vector<std::int64_t> parents, DocumentPair pair) {
    try {
      join_pairs(parents, {&pair, 1});
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(!refused({0, 0, 1}, {1, 2}));
  CHECK(refused({0, 1}, {0, 2}));
  CHECK(refused({0, 1}, {-1, 1}));
  CHECK(refused({0, 2, 1}, {0, 1}));   // a circle
  CHECK(refused({0, -1, 2}, {1, 2}));  // outside
}

void test_jaccard() {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 100; ++trial) {
    const Tokens a = random_tokens(random, random() % 40, 3);
    const Tokens b = random_tokens(random, random() % 40, 3);
    const std::size_t n = random() % 5 + 1;
    const auto one = plain_ngrams(a, n), other = plain_ngrams(b, n);
    std::vector<std::uint64_t> both, any;
    std::set_intersection(one.begin(), one.end(), other.begin(), other.end(),
                          std::back_inserter(both));
    std::set_union(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(any));
    const double expected =
        any.empty() ? 0 : static_cast<double>(both.size()) / static_cast<double>(any.size());
    CHECK(jaccard(Exactly<std::uint16_t>(a).span(), Exactly<std::uint16_t>(b).span(), n) ==
          expected);
  }
}

// Every place of a document at which a text of the set, or an n-gram of one, stands.
std::set<std::pair<std::int64_t, Tokens>> plain_hits(const std::vector<Tokens>& texts,
                                                     const Tokens& document, std::size_t ngram,
                                                     std::size_t shortest) {
  std::set<std::pair<std::int64_t, Tokens>> hits;
  for (const Tokens& text : texts) {
    if (text.size() < shortest) continue;
    const std::size_t length = std::min(text.size(), ngram);
    for (std::size_t i = 0; i + length <= text.size(); ++i) {
      const auto first = text.begin() + static_cast<std::ptrdiff_t>(i);
      const Tokens phrase(first, first + static_cast<std::ptrdiff_t>(length));
      auto at = document.begin();
      while ((at = std::search(at, document.end(), phrase.begin(), phrase.end())) !=
             document.end()) {
        hits.insert({at++ - document.begin(), phrase});
      }
    }
  }
  return hits;
}

void test_phrases() {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t ngram = random() % 14 + 1, shortest = random() % ngram + 1;
    const std::uint32_t vocabulary = random() % 2 == 0 ? 2 : 5000;
    std::vector<Tokens> texts(random() % 8);
    Tokens all;
    std::vector<std::int64_t> ends;
    for (Tokens& text : texts) {
      text = random_tokens(random, random() % 40, vocabulary);
      all.insert(all.end(), text.begin(), text.end());
      ends.push_back(static_cast<std::int64_t>(all.size()));
    }
    const Phrases phrases({all.begin(), all.end()}, ends, ngram, shortest);
    for (int document = 0; document < 4; ++document) {
      Tokens tokens = random_tokens(random, random() % 60, vocabulary);
      for (int planted = 0; planted < 3 && !texts.empty(); ++planted) {
        const Tokens& text = texts[random() % texts.size()];
        const std::size_t from = random() % (text.size() + 1);
        const auto place = static_cast<std::ptrdiff_t>(random() % (tokens.size() + 1));
        tokens.insert(tokens.begin() + place, text.begin() + static_cast<std::ptrdiff_t>(from),
                      text.end());
      }
      std::vector<Phrases::Hit> hits, of_narrow, of_wide;
      phrases.find(7, Exactly<std::uint32_t>(tokens).span(), hits);
      phrases.find(7, Exactly<std::uint16_t>(tokens).span(), of_narrow);
      phrases.find(7, Exactly<std::uint64_t>(tokens).span(), of_wide);
      CHECK(hits.size() == of_narrow.size());
      CHECK(hits.size() == of_wide.size());
      std::set<std::pair<std::int64_t, Tokens>> found;
      for (const Phrases::Hit& hit : hits) {
        CHECK(hit.document == 7);
        const Phrases::Phrase& phrase = phrases.phrases()[static_cast<std::size_t>(hit.phrase)];
        const auto first = all.begin() + phrase.begin;
        CHECK(hit.end == hit.begin + phrase.length);
        found.insert({hit.begin, Tokens(first, first + phrase.length)});
      }
      CHECK(found.size() == hits.size());  // each once
      CHECK(found == plain_hits(texts, tokens, ngram, shortest));
    }
  }
  for (const std::vector<std::int64_t>& ends :
       {std::vector<std::int64_t>{-1}, std::vector<std::int64_t>{2, 1},
        std::vector<std::int64_t>{4}}) {
    bool refused = false;
    try {
      Phrases({1, 2, 3}, ends, 2, 1);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

// N-grams of tokens of different sizes: as many as come to a size, and short texts whole.
void test_phrases_of_sizes() {
  const std::vector<std::uint64_t> texts{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<std::uint8_t> sizes{1, 3, 1, 1, 1, 3, 3, 2, 2};
  const Phrases phrases(texts, std::vector<std::int64_t>{7, 9}, 2, 1, sizes, 3);
  std::vector<std::pair<std::int64_t, std::int64_t>> found;
  for (const auto& phrase : phrases.phrases()) found.push_back({phrase.begin, phrase.length});
  CHECK((found == decltype(found){{0, 4}, {1, 4}, {2, 4}, {3, 4}, {4, 3}, {5, 2}, {7, 2}}));
  std::vector<Phrases::Hit> hits;
  phrases.find<std::uint64_t>(0, texts, hits);
  CHECK(hits.size() == found.size());
}

// The words of documents by their tokens are those of their text, whatever the tokens are.
void test_words() {
  std::mt19937_64 random(11);
  const std::vector<std::string> parts{"the",
                                       " fox",
                                       "\n",
                                       " ",
                                       ".",
                                       ")",
                                       "(",
                                       "1",
                                       "12",
                                       " 3",
                                       "a",
                                       "<",
                                       "<b",
                                       ">",
                                       "&",
                                       "&amp;",
                                       "]",
                                       "](",
                                       "http://x",
                                       "/",
                                       "\xE4",
                                       "\xB8",
                                       "\xAD",
                                       "\xE4\xB8",
                                       "\xE4\xB8\xAD",
                                       "\xE2\x80",
                                       "\x99",
                                       "\xF0\x9F",
                                       "\x98\x80",
                                       "\xC3\xA9",
                                       "e\xCC\x81",
                                       "-",
                                       "\xFF",
                                       ";",
                                       "#39;",
                                       " (",
                                       "",
                                       "\xE4\xB8\xAD\xE6\x96\x87",
                                       " \xE2\x80",
                                       "1.",
                                       "b)",
                                       "\xC3\x9F",
                                       "SS"};
  for (int trial = 0; trial < 300; ++trial) {
    std::string bytes;
    std::vector<std::int64_t> ends;
    for (int token = 0; token < 60; ++token) {
      for (std::uint64_t some = random() % 3; some-- > 0;) bytes += parts[random() % parts.size()];
      ends.push_back(static_cast<std::int64_t>(bytes.size()));
    }
    const Exactly<std::uint8_t> exactly(bytes);
    const TokenWords words(exactly.span(), ends);
    for (int document = 0; document < 30; ++document) {
      const Tokens tokens = random_tokens(random, random() % 80, 62);
      std::vector<std::uint32_t> hashes, narrow;
      words.hashes(Exactly<std::uint32_t>(tokens).span(), hashes);
      words.hashes(Exactly<std::uint16_t>(tokens).span(), narrow);
      std::vector<Word> all;
      words.words(Exactly<std::uint64_t>(tokens).span(), all);
      CHECK(hashes == narrow);
      CHECK(hashes.size() == all.size());
      for (std::size_t i = 0; i < all.size(); ++i) {
        CHECK(hashes[i] == all[i].hash);
        CHECK(all[i].begin < all[i].end && all[i].end <= tokens.size());
        CHECK(i == 0 || all[i - 1].end <= all[i].begin + 1);
      }
    }
  }
}

// The digests of 0 to 4,999 bytes, and the digest of all of these as the xxhash package 3.5 has it.
void test_digests() {
  std::vector<std::uint8_t> data;
  for (std::size_t i = 0; i < 5000; ++i) data.push_back((i * i + 7 * i) % 251);
  for (const Level level : levels()) {
    std::vector<std::uint8_t> digests;
    for (std::size_t size = 0; size < data.size(); ++size) {
      const Exactly<std::uint8_t> bytes{std::span(data).first(size)};
      const auto [high, low] = xxh3_128(bytes.span(), level);
      for (const std::uint64_t half : {high, low}) {
        for (int shift = 56; shift >= 0; shift -= 8) digests.push_back(half >> shift & 0xFF);
      }
    }
    const Uint128 all = xxh3_128(digests, level);
    CHECK(all.high == 0xD52BE45FE65828D7);
    CHECK(all.low == 0x9198FF3D0E334C94);
  }
}

}  // namespace
}  // namespace tokpack::test

int main(int argc, char** argv) {
  tokpack::test::test_bands();
  tokpack::test::test_golden(argc > 1 ? argv[1] : TOKPACK_GOLDEN "/band_hashes.txt");
  tokpack::test::test_equal_pairs();
  tokpack::test::test_clusters();
  tokpack::test::test_jaccard();
  tokpack::test::test_phrases();
  tokpack::test::test_phrases_of_sizes();
  tokpack::test::test_words();
  tokpack::test::test_digests();
  return tokpack::test::report();
}

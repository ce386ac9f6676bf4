// The encoder at every level against a slow twin, on random vocabularies and texts, in buffers of
// the exact size, for the sanitizers. That real vocabularies give the right ids is tested from
// Python.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bpe_twin.hpp"
#include "check.hpp"
#include "core/bpe/bpe_encoder.hpp"
#include "core/pretokenize/gpt2_scan.hpp"
#include "memory.hpp"

namespace tokpack::test {
namespace {

constexpr std::string_view kAtoms[] = {
    "a",      "b",      "ab",      "the",    "The",    " the",   " ",      "  ",         "     ",
    "\n",     "\r\n",   "\t",      "'",      "'s",     "'re",    "'d",     "1",          "23",
    "!",      "...",    "<|eod|>", "<|e",    "\u00e9", "\u00d7", "\u00a0", "\u3000",     "\u0301",
    "\u0436", "\u4e2d", "\u4dc0",  "\u0e01", "\uac00", "\ud7b0", "\u2028", "\U0001f600",
};

std::string random_text(std::mt19937& random, std::size_t atoms) {
  std::string text;
  for (std::size_t i = 0; i < atoms; ++i) {
    const std::string_view atom = kAtoms[random() % std::size(kAtoms)];
    const std::size_t times = random() % 8 == 0 ? random() % 70 : 1;
    for (std::size_t k = 0; k < times; ++k) text.append(atom);
  }
  return text;
}

template <class Out>
void compare(BpeEncoder& encoder, const Vocabulary& v, const std::vector<AddedToken>& added,
             std::mt19937& random) {
  Buffer<Out> ids;
  Buffer<std::int32_t> lengths;
  std::vector<std::int64_t> special;
  for (int round = 0; round < 60; ++round) {
    std::string data;
    std::vector<Span> spans;
    std::vector<std::uint32_t> expected;
    std::vector<std::size_t> expected_lengths;
    for (std::size_t documents = random() % 6; documents-- > 0;) {
      const std::string text = random_text(random, random() % 60);
      const auto begin = static_cast<std::int64_t>(data.size());
      data += text;
      spans.push_back({begin, static_cast<std::int64_t>(data.size())});
      auto document = encode_slowly(v, Pattern::kGpt2, added, text);
      if (!document.empty()) {
        document.insert(document.begin(), {9, 8});
        document.push_back(7);
      }
      expected_lengths.push_back(document.size());
      expected.insert(expected.end(), document.begin(), document.end());
    }
    const Exact copy(data);
    encoder.encode(copy.span(), spans, {{9, 8}, {7}}, {&ids, &lengths, &special});
    CHECK(std::equal(expected.begin(), expected.end(), ids.data(), ids.data() + ids.size()));
    CHECK(std::equal(expected_lengths.begin(), expected_lengths.end(), lengths.data(),
                     lengths.data() + lengths.size()));
  }
  // Not UTF-8: any ids, but no harm.
  for (int round = 0; round < 60; ++round) {
    std::string data(random() % 200, '\0');
    for (char& c : data) c = static_cast<char>(random() % 4 == 0 ? 'a' : random());
    const Exact copy(data);
    const Span whole{0, static_cast<std::int64_t>(data.size())};
    encoder.encode(copy.span(), {&whole, 1}, {}, {&ids, &lengths, &special});
    CHECK(ids.size() <= data.size());
  }
}

void test_encoder(std::uint32_t base, bool wide, bool space_runs, std::size_t cache_bytes) {
  std::mt19937 random(base + 2 * wide + space_runs);
  const Vocabulary v = random_vocabulary(random, random_text(random, 400), base, 300);
  auto next = static_cast<std::uint32_t>(v.words.size());
  std::vector<AddedToken> added{{"<|eod|>", next++, true, false}};
  for (std::size_t n = 2; space_runs && n <= 24; ++n) {
    added.push_back({std::string(n, ' '), next++, false, true});
  }
  for (const Level level : levels()) {
    const BpeOptions options{Pattern::kGpt2, false, true, cache_bytes, level};
    const auto encoder =
        make_bpe_encoder(BpeModel(v.byte_ids, v.merges, {}), added, v.words, wide, next, options);
    wide ? compare<std::int32_t>(*encoder, v, added, random)
         : compare<std::uint16_t>(*encoder, v, added, random);
  }
}

// Long words, where a key of the word cache and the 16-bit merges end: one size after the other,
// one byte and two.
void test_sizes() {
  std::mt19937 random(5);
  const Vocabulary v = random_vocabulary(random, random_text(random, 400), 10, 300);
  for (const Level level : levels()) {
    const BpeOptions options{Pattern::kNone, false, true, 1 << 16, level};
    const auto encoder =
        make_bpe_encoder(BpeModel(v.byte_ids, v.merges, {}), {}, {}, false, 600, options);
    Buffer<std::uint16_t> ids;
    Buffer<std::int32_t> lengths;
    std::vector<std::int64_t> special;
    for (std::size_t size = 0; size < 600; size += size < 80 ? 1 : 37) {
      for (int kind = 0; kind < 3; ++kind) {
        std::string text(size, 'a');
        for (char& c : text) c = kind == 0 ? 'a' : "ab the"[random() % 6];
        const Exact copy(text);
        const Span whole{0, static_cast<std::int64_t>(size)};
        encoder->encode(copy.span(), {&whole, 1}, {}, {&ids, &lengths, &special});
        const auto expected = merge_slowly(v, text);
        CHECK(std::equal(expected.begin(), expected.end(), ids.data(), ids.data() + ids.size()));
      }
    }
  }
}

// Every level's scanner sees the same pretokens.
void test_scanners() {
  std::mt19937 random(9);
  for (int round = 0; round < 400; ++round) {
    const Exact text(random_text(random, random() % 80));
    std::vector<std::uint32_t> ends(text.span().size() + 1);
    std::size_t pos = 0;
    const std::size_t count = pretokenize_scalar(
        Pattern::kGpt2, text.span().data(), text.span().size(), &pos, ends.data(), ends.size());
    for (const Level level : levels()) {
      const auto scanned = scan_ends(level, Pattern::kGpt2, text.span());
      if (!scanned) continue;
      CHECK(std::equal(ends.begin(), ends.begin() + static_cast<std::ptrdiff_t>(count),
                       scanned->begin(), scanned->end()));
    }
  }
}

}  // namespace
}  // namespace tokpack::test

int main() {
  using namespace tokpack::test;
  constexpr std::size_t kTiny = 1 << 12, kLarge = 1 << 20;
  test_encoder(10, false, false, kLarge);
  test_encoder(10, false, true, kLarge);
  test_encoder(20, false, false, kTiny);  // grows, then replaces
  test_encoder(30, true, true, kLarge);
  test_encoder(70000, true, false, kLarge);
  test_encoder(70000, true, true, kTiny);
  test_sizes();
  test_scanners();
  return report();
}

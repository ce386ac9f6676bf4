// The encoder at every level against a slow twin, on random vocabularies and texts, in buffers of
// the exact size, for the sanitizers. That real vocabularies give the right ids is tested from
// Python.
#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpe_twin.hpp"
#include "check.hpp"
#include "core/base/huge_array.hpp"
#include "core/bpe/bpe_encoder.hpp"
#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/window_merger.hpp"
#include "core/pretokenize/scan.hpp"
#include "memory.hpp"

namespace tokpack::test {
namespace {

constexpr std::string_view kAtoms[] = {
    "a",      "b",      "ab",     "the",          "The",        " the",       " ",       "  ",
    "     ",  "\n",     "\r\n",   "\t",           "'",          "'s",         "'re",     "'d",
    "1",      "23",     "!",      "...",          "<|eod|>",    "<|e",        "\u00e9",  "\u00d7",
    "\u00a0", "\u3000", "\u0301", "\u0436",       "\u0416",     "\u4e2d",     "\u4dc0",  "\u0e01",
    "\uac00", "\ud7b0", "\u2028", "\u2764\ufe0f", "\U0001f600", "\U00010400", "A",       "BC",
    "aB",     "\u05d0", "\u02b0", "\u0660",       "\u00b2",     "\u30fb",     "\u3042",  "\u3099",
    "\u3040", "\x01",   "\u200d", "\n   \n",      "/",          "'S",         "'\u017f",
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
void compare(BpeEncoder& encoder, const Vocabulary& v, const Pretokenizer& pattern,
             const std::vector<AddedToken>& added, std::mt19937& random, int rounds) {
  Buffer<Out> ids;
  Buffer<std::int32_t> lengths;
  std::vector<std::int64_t> special;
  for (int round = 0; round < rounds; ++round) {
    std::string data;
    std::vector<Span> spans;
    std::vector<std::uint32_t> expected;
    std::vector<std::size_t> expected_lengths;
    for (std::size_t documents = random() % 6; documents-- > 0;) {
      const std::string text = random_text(random, random() % 60);
      const auto begin = static_cast<std::int64_t>(data.size());
      data += text;
      spans.push_back({begin, static_cast<std::int64_t>(data.size())});
      auto document = encode_slowly(v, pattern, added, text);
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
  for (int round = 0; round < rounds; ++round) {
    std::string data(random() % 200, '\0');
    for (char& c : data) c = static_cast<char>(random() % 4 == 0 ? 'a' : random());
    const Exact copy(data);
    const Span whole{0, static_cast<std::int64_t>(data.size())};
    encoder.encode(copy.span(), {&whole, 1}, {}, {&ids, &lengths, &special});
    CHECK(ids.size() <= data.size());
  }
}

void test_encoder(std::uint32_t base, bool wide, bool space_runs, std::size_t cache_bytes,
                  const Pretokenizer& pattern = Pretokenizer("gpt2"), bool whole_words = false,
                  int rounds = 60) {
  std::mt19937 random(base + 2 * wide + space_runs);
  Vocabulary v = random_vocabulary(random, random_text(random, 400), base, 300);
  v.whole_words = whole_words;
  auto next = static_cast<std::uint32_t>(v.words.size());
  std::vector<AddedToken> added{{"<|eod|>", next++, true, false}};
  for (std::size_t n = 2; space_runs && n <= 24; ++n) {
    added.push_back({std::string(n, ' '), next++, false, true});
  }
  for (const Level level : levels()) {
    const BpeOptions options{pattern, std::nullopt, true, cache_bytes, level};
    const auto encoder = make_bpe_encoder(v.model(), added, v.words, wide, next, options);
    wide ? compare<std::int32_t>(*encoder, v, pattern, added, random, rounds)
         : compare<std::uint16_t>(*encoder, v, pattern, added, random, rounds);
  }
}

// Rules in any order, such as no training gives, of few characters: nearly all merges depend on
// what is far away. Some products are those of two rules.
BpeModel random_rules(std::mt19937& random, bool in_order) {
  std::vector<std::string> texts;
  std::array<std::uint32_t, 256> byte_ids;
  byte_ids.fill(BpeModel::kNoToken);
  for (const char c : {'a', 'b', ' '}) {
    byte_ids[static_cast<std::uint8_t>(c)] = static_cast<std::uint32_t>(texts.size());
    texts.push_back(std::string(1, c));
  }
  std::vector<Merge> merges;
  for (std::size_t i = 0, count = 2 + random() % 40; i < count; ++i) {
    const auto left = static_cast<std::uint32_t>(random() % texts.size());
    const auto right = static_cast<std::uint32_t>(random() % texts.size());
    const bool is_known = std::ranges::any_of(
        merges, [&](const Merge& merge) { return merge.left == left && merge.right == right; });
    const std::string text = texts[left] + texts[right];
    if (is_known || text.size() > 20) continue;
    const auto known = std::ranges::find(texts, text);
    const auto product = static_cast<std::uint32_t>(known - texts.begin());
    merges.push_back({left, right, product});
    if (product == texts.size()) texts.push_back(text);
  }
  if (!in_order) std::ranges::shuffle(merges, random);
  return BpeModel(byte_ids, merges, WholeWords());
}

// What windows tell is what merging the whole text gives, and they tell it of most texts.
void test_windows() {
  std::mt19937 random(11);
  std::size_t told = 0, texts = 0;
  for (int round = 0; round < 600; ++round) {
    const BpeModel model = random_rules(random, round % 2 == 0);
    CHECK(!model.sizes().empty());
    std::size_t merged = 0;
    const auto merge = [&](const std::uint8_t* text, std::size_t size, std::uint32_t* out) {
      merged += size;
      return model.encode(text, size, out);
    };
    for (const std::size_t window : {1, 2, 3, 5, 8, 13, 32, 128}) {
      WindowMerger windows(model.sizes(), window);
      std::string text(1 + random() % (round % 100 == 0 ? 60000 : 700), 'a');
      const unsigned characters = 1 + random() % 3;
      for (char& c : text) c = "ab "[random() % characters];
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
      std::vector<std::uint32_t> expected(text.size()), ids(text.size());
      expected.resize(model.encode(bytes, text.size(), expected.data()));
      merged = 0;
      ids.resize(windows.encode(bytes, text.size(), ids.data(), merge));
      CHECK(merged <= 5 * text.size() + (1 << 15));
      ++texts;
      if (ids.empty()) continue;
      ++told;
      CHECK(ids == expected);
    }
  }
  CHECK(told > texts / 2);
}

// Windows cannot tell where a token ends that is made of two numbers of bytes.
void test_sizes_of_symbols() {
  std::array<std::uint32_t, 256> byte_ids;
  byte_ids.fill(BpeModel::kNoToken);
  byte_ids['a'] = 0;
  const Merge two{0, 0, 1}, also_two{1, 0, 1}, three{1, 0, 2}, four{2, 0, 3};
  const auto sizes = [&](const std::vector<Merge>& merges) {
    return BpeModel(byte_ids, merges, WholeWords()).sizes();
  };
  CHECK(sizes({two}) == std::vector<std::uint32_t>({1, 2}));
  CHECK(sizes({two, also_two}).empty());
  CHECK(sizes({four, three, two}) == std::vector<std::uint32_t>({1, 2, 3, 4}));
}

// Long words, where a key of the word cache and the merges in registers end: one size after the
// other, one byte and two.
template <class Out>
void test_sizes() {
  constexpr bool wide = sizeof(Out) == 4;
  std::mt19937 random(5);
  const Vocabulary v = random_vocabulary(random, random_text(random, 400), wide ? 70000 : 10, 300);
  for (const Level level : levels()) {
    const BpeOptions options{Pretokenizer("none"), std::nullopt, true, 1 << 16, level};
    const auto encoder = make_bpe_encoder(v.model(), {}, {}, wide, wide ? 70600 : 600, options);
    Buffer<Out> ids;
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

// Every level finds the same pretokens that are longer than a key.
void test_find_long() {
  std::mt19937 random(3);
  std::vector<std::uint32_t> starts(1);
  while (starts.size() < kMaxWindow + 1 + kLongBlock) {
    starts.push_back(starts.back() + static_cast<std::uint32_t>(random() % 32));
  }
  for (std::size_t count = 0; count <= kMaxWindow; count += 5) {
    std::vector<std::uint16_t> expected;
    for (std::size_t i = 0; i < count; ++i) {
      if (starts[i + 1] - starts[i] > WordKey::kMaxSize) {
        expected.push_back(static_cast<std::uint16_t>(i));
      }
    }
    for (const Level level : levels()) {
      std::vector<std::uint16_t> found(count);
      found.resize(bpe_kernel(level).find_long(starts.data(), count, found.data()));
      CHECK(found == expected);
    }
  }
}

// Every level merges as a slow twin does, in whatever order the rules are: characters that share
// bytes, and rules for parts of them.
void test_merging() {
  constexpr std::string_view kCharacters[] = {
      "\u00e9", "\u00e8", "\u0169",     "\u4e2d", "\u4e2e",   "\u4ead", "\u512d", "\uac00",
      "a",      " ",      "\U0001f600", "\xc3",   "\xe4\xb8", "\xad",   "\xa9"};
  const auto random_word = [&](std::mt19937& random, std::size_t most) {
    std::string word;
    for (std::size_t left = 1 + random() % most; left > 0; --left) {
      word += kCharacters[random() % std::size(kCharacters)];
    }
    return word;
  };
  std::mt19937 random(3);
  std::size_t whole = 0, bytes = 0;
  for (int round = 0; round < 400; ++round) {
    Vocabulary v = random_vocabulary(random, random_word(random, 400), 70000, 4 + random() % 120);
    if (round % 2 == 1) {
      std::ranges::shuffle(v.merges, random);
      for (std::size_t r = 0; r < v.merges.size(); ++r) {
        v.ranks[{v.merges[r].left, v.merges[r].right}] = static_cast<std::uint32_t>(r);
      }
    }
    const MergeTable32 table(v.byte_ids, v.merges);
    const FirstSymbols symbols(table, v.merges, symbol_ends(v.byte_ids, v.merges), 1);
    if (symbols.empty()) continue;
    for (int i = 0; i < 60; ++i) {
      const std::string word = random_word(random, i < 50 ? 8 : 80);
      if (word.size() < 2 || word.size() > LongWordCache::kMaxSize) continue;
      const std::string padded = word + std::string(kKeySlack, '\xa9');
      const auto* const text = reinterpret_cast<const std::uint8_t*>(padded.data());
      std::uint32_t first[33], ids[LongWordCache::kMaxSize + kOutputSlack];
      whole += symbols.write(table, text, word.size(), first);
      bytes += word.size();
      for (const Level level : levels()) {
        const BpeKernel& kernel = bpe_kernel(level);
        if (word.size() > kernel.merge32_limit) continue;
        const std::size_t count = kernel.merge32(table, symbols, text, word.size(), ids);
        CHECK(std::ranges::equal(std::span(ids, count), merge_slowly(v, word)));
      }
    }
  }
  CHECK(whole < bytes * 9 / 10 && bytes > 10'000);
}

// Rules that have a scanner and no name.
const std::vector<Pretokenizer>& nameless() {
  static const std::vector<Pretokenizer> all = [] {
    using Contractions = ScanRules::Contractions;
    using Tail = ScanRules::Tail;
    constexpr ScanShape kPlain{.family = ScanShape::Family::kCl100k};
    constexpr ScanShape kCased{.family = ScanShape::Family::kCl100k, .marks = true, .cased = true};
    std::vector<Pretokenizer> some;
    for (const ScanRules& rules :
         {ScanRules{kPlain, Contractions::kNone, 0, Tail::kNone},
          ScanRules{kPlain, Contractions::kAsWritten, 2, Tail::kLinesAndSlashes},
          ScanRules{kCased, Contractions::kAsWritten, 2, Tail::kLines},
          ScanRules{kCased, Contractions::kAnyCase, 0, Tail::kNone}}) {
      some.emplace_back(texts_of(rules));
      CHECK(some.back().rules == rules && !name_of(some.back()));
    }
    return some;
  }();
  return all;
}

// Every level's scanner finds the pretokens that the steps give, of all rules.
void test_scanners() {
  std::mt19937 random(9);
  std::vector<Pretokenizer> all = nameless();
  for (const std::string_view name : pattern_names()) all.emplace_back(name);
  for (int round = 0; round < 400; ++round) {
    const Exact text(random_text(random, random() % 80));
    for (const Pretokenizer& one : all) {
      const auto ends = pretoken_ends(one, std::nullopt, text.span());
      for (const Level level : levels()) CHECK(pretoken_ends(one, level, text.span()) == ends);
    }
  }
}

// Arrays with and without huge pages are zeros at first, and keep what is written to them.
void test_huge_array() {
  for (const std::size_t size : {std::size_t{1000}, std::size_t{3'000'000}}) {
    HugeArray<std::uint16_t> array(size);
    CHECK(std::all_of(array.data(), array.data() + size, [](std::uint16_t x) { return x == 0; }));
    for (std::size_t i = 0; i < size; ++i) array[i] = static_cast<std::uint16_t>(i);
    array.make_huge();
    for (std::size_t i = 0; i < size; ++i) CHECK(array[i] == static_cast<std::uint16_t>(i));
  }
}

}  // namespace
}  // namespace tokpack::test

int main() {
  using namespace tokpack::test;
  constexpr std::size_t kTiny = 1 << 12, kLarge = 1 << 20;
  test_encoder(10, false, false, kLarge);
  test_encoder(10, false, true, kLarge);
  test_encoder(20, false, false, kTiny);  // replaces
  test_encoder(30, true, true, kLarge);
  test_encoder(70000, true, false, kLarge);
  test_encoder(70000, true, true, kTiny);
  for (const std::string_view name : tokpack::pattern_names()) {
    const tokpack::Pretokenizer pattern(name);
    test_encoder(40, false, false, kLarge, pattern, false, 15);
    test_encoder(70000, true, false, kTiny, pattern, true, 15);
  }
  // A text that looks ahead, and bytes.
  const tokpack::StepText steps[] = {
      {"Isolated", R"((?=(\d{3})+(?!\d)))", false}, {"ByteLevel", "", true}, {"Digits", "", false}};
  test_encoder(40, false, false, kLarge, tokpack::Pretokenizer(steps));
  const tokpack::StepText prefixed[] = {{"ByteLevel", "add_prefix_space", true}};
  CHECK(tokpack::Pretokenizer(prefixed).prefixes());
  test_sizes<std::uint16_t>();
  test_sizes<std::int32_t>();
  test_windows();
  test_sizes_of_symbols();
  test_find_long();
  test_merging();
  test_scanners();
  test_huge_array();
  return report();
}

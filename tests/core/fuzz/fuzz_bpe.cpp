// The encoder at every level against a slow twin; on what is not UTF-8, only that it does no harm.
//
// The first byte chooses the encoder; 0xFF in the rest separates documents. Encoders live on from
// input to input, so that their caches fill, grow and are replaced.
#include <map>
#include <memory>

#include "../bpe_twin.hpp"
#include "core/bpe/bpe_encoder.hpp"
#include "fuzz.hpp"

namespace tokpack::test {
namespace {

constexpr std::string_view kSample =
    "the cat and the other cats that they have, it's the end of the day's   work.\n"
    "The    12 the 1234 \xc3\xa9t\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 don't the the aaaaaaaaaaaa\r\n";

// One vocabulary, options, and an encoder for each level.
constexpr unsigned kChoices = 9 * 8 * 2;  // of a pattern, and the options of Bench

struct Bench {
  Vocabulary v;
  std::vector<AddedToken> added;
  Pattern pattern;
  bool wide;
  std::vector<std::unique_ptr<BpeEncoder>> encoders;

  Bench(unsigned choice) : wide(choice & 1) {
    std::mt19937 random(choice);
    std::string sample;
    for (int i = 0; i < 4; ++i) sample += kSample;
    v = random_vocabulary(random, sample, wide ? 70000 : 20, 300);
    v.whole_words = choice >= kChoices / 2;
    auto next = static_cast<std::uint32_t>(v.words.size());
    added.push_back({"<|eod|>", next++, true, false});
    for (std::size_t n = 2; (choice & 2) && n <= 24; ++n) {
      added.push_back({std::string(n, ' '), next++, false, true});
    }
    const auto names = pattern_names();
    pattern = pattern_by_name(names[(choice >> 3) % names.size()]).value();
    const std::size_t cache = choice & 4 ? 1 << 12 : 1 << 20;
    for (const Level level : levels()) {
      encoders.push_back(make_bpe_encoder(v.model(), added, v.words, wide, next,
                                          {pattern, false, true, cache, level}));
    }
  }
};

Bench& bench(unsigned choice) {
  static std::map<unsigned, std::unique_ptr<Bench>> all;
  auto& one = all[choice];
  if (!one) one = std::make_unique<Bench>(choice);
  return *one;
}

struct Texts {
  std::string data;
  std::vector<Span> spans;
};

Texts parted(const std::string& text) {
  Texts texts;
  const auto here = [&] { return static_cast<std::int64_t>(texts.data.size()); };
  std::int64_t begin = 0;
  for (const char c : text) {
    if (static_cast<std::uint8_t>(c) == 0xFF) {
      texts.spans.push_back({begin, here()});
      begin = here();
    } else {
      texts.data += c;
    }
  }
  texts.spans.push_back({begin, here()});
  return texts;
}

template <class Out>
std::vector<std::uint32_t> encode(BpeEncoder& encoder, const Texts& texts,
                                  std::vector<std::int32_t>* lengths) {
  const Exact copy(texts.data);
  Buffer<Out> ids;
  Buffer<std::int32_t> counts;
  std::vector<std::int64_t> special;
  encoder.encode(copy.span(), texts.spans, {{}, {7}}, {&ids, &counts, &special});
  lengths->assign(counts.data(), counts.data() + counts.size());
  std::int64_t total = 0;
  for (const std::int32_t length : *lengths) total += length;
  MUST(total == static_cast<std::int64_t>(ids.size()));
  MUST(ids.size() <= texts.data.size() + texts.spans.size());
  return {ids.data(), ids.data() + ids.size()};
}

std::vector<std::uint32_t> encode(const Bench& with, BpeEncoder& encoder, const Texts& texts,
                                  std::vector<std::int32_t>* lengths) {
  return with.wide ? encode<std::int32_t>(encoder, texts, lengths)
                   : encode<std::uint16_t>(encoder, texts, lengths);
}

Texts valid(const Texts& texts) {
  Texts result;
  for (const Span& span : texts.spans) {
    const auto from = static_cast<std::size_t>(span.begin);
    const auto size = static_cast<std::size_t>(span.end - span.begin);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(texts.data.data());
    result.data += repaired(bytes + from, size);  // of the same size
  }
  result.spans = texts.spans;
  return result;
}

}  // namespace
}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack::test;
  if (size == 0) return 0;
  const Bench& with = bench(data[0] % kChoices);
  const Texts raw = parted(std::string(as_text(data + 1, size - 1)));
  const Texts texts = valid(raw);
  std::vector<std::uint32_t> expected;
  std::vector<std::int32_t> expected_lengths;
  for (const auto& span : texts.spans) {
    const auto from = static_cast<std::size_t>(span.begin);
    const auto to = static_cast<std::size_t>(span.end);
    auto ids = encode_slowly(with.v, with.pattern, with.added, texts.data.substr(from, to - from));
    if (!ids.empty()) ids.push_back(7);
    expected_lengths.push_back(static_cast<std::int32_t>(ids.size()));
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  for (const auto& encoder : with.encoders) {
    std::vector<std::int32_t> lengths;
    encode(with, *encoder, raw, &lengths);
    MUST(encode(with, *encoder, texts, &lengths) == expected);
    MUST(lengths == expected_lengths);
  }
  return 0;
}

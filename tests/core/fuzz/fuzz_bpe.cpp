// The encoder at every level against a slow twin; on what is not UTF-8, only that it does no harm.
//
// The first byte chooses the encoder; 0xFF in the rest separates documents.
#include "../bpe_twin.hpp"
#include "core/bpe/bpe_encoder.hpp"
#include "encoding.hpp"

namespace tokpack::test {
namespace {

constexpr std::string_view kSample =
    "the cat and the other cats that they have, it's the end of the day's   work.\n"
    "The    12 the 1234 \xc3\xa9t\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 don't the the aaaaaaaaaaaa\r\n";

constexpr unsigned kChoices = 9 * 8 * 2;  // of a pattern, and the options of make_bench()

struct Twin {
  Vocabulary v;
  Pretokenizer pattern;
  std::vector<AddedToken> added;

  std::vector<std::uint32_t> encode(const std::string& document) const {
    return encode_slowly(v, pattern, added, document);
  }
};

Bench<Twin> make_bench(unsigned choice) {
  const bool wide = choice & 1;
  std::mt19937 random(choice);
  std::string sample;
  for (int i = 0; i < 4; ++i) sample += kSample;
  const auto names = pattern_names();
  Twin twin{random_vocabulary(random, sample, wide ? 70000 : 20, 300),
            Pretokenizer(names[(choice >> 3) % names.size()]),
            {}};
  twin.v.whole_words = choice >= kChoices / 2;
  auto next = static_cast<std::uint32_t>(twin.v.words.size());
  twin.added.push_back({"<|eod|>", next++, true, false});
  for (std::size_t n = 2; (choice & 2) && n <= 24; ++n) {
    twin.added.push_back({std::string(n, ' '), next++, false, true});
  }
  Bench<Twin> bench{std::move(twin), wide};
  const std::size_t cache = choice & 4 ? 1 << 12 : 1 << 20;
  for (const Level level : levels()) {
    const BpeOptions options{bench.twin.pattern, std::nullopt, true, cache, level};
    bench.encoders.push_back(make_bpe_encoder(bench.twin.v.model(), bench.twin.added,
                                              bench.twin.v.words, wide, next, options));
  }
  return bench;
}

}  // namespace
}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack::test;
  if (size == 0) return 0;
  compare(bench_of(data[0] % kChoices, kChoices, make_bench), as_text(data + 1, size - 1), 1);
  return 0;
}

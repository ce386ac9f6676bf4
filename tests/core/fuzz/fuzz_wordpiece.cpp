// WordPiece against a slow twin that takes one normalizer after the other and one character after
// the other, at every level, with added tokens.
//
// The first two bytes choose a model; 0xFF in the rest separates documents.
#include <map>
#include <random>

#include "core/text/code_points.hpp"
#include "core/text/utf8.hpp"
#include "core/wordpiece/wordpiece_encoder.hpp"
#include "encoding.hpp"

namespace tokpack::test {
namespace {

using Ids = std::vector<std::uint32_t>;

WordPieceModel random_model(unsigned choice) {
  WordPieceModel model;
  std::mt19937 random(choice);
  const auto coin = [&] { return random() % 2 == 0; };
  model.prefix = random() % 4 == 0 ? "" : "##";
  model.longest_word = random() % 4 == 0 ? 3 : 100;
  model.encode_specials = coin();
  const char* parts[] = {"a", "b", "e", "##", ".", "\xc3\xa9", "\xcc\x81", "\xe4\xb8\xad", "\n"};
  std::map<std::string, bool> seen;
  const auto add = [&](const std::string& text) {
    if (seen.emplace(text, true).second) model.tokens.push_back(text);
  };
  add("<unknown>");
  for (unsigned i = 0; i < 30; ++i) {
    std::string text;
    for (unsigned size = 1 + random() % 3; size > 0; --size) text += parts[random() % 9];
    add(text);
    if (coin()) add(model.prefix + text);
  }
  using Kind = NormalizerKind;
  if (coin()) model.steps.push_back({Kind::kCleanText, "", ""});
  if (coin()) model.steps.push_back({Kind::kIdeographs, "", ""});
  if (coin()) model.steps.push_back({coin() ? Kind::kNfd : Kind::kNfkd, "", ""});
  if (coin()) model.steps.push_back({Kind::kBertMarks, "", ""});
  if (coin()) {
    model.steps.push_back({Kind::kCharacters, "A\xc3\x89\xcc\x80", {"a\0\xc3\xa9\0\0", 6}});
  }
  if (random() % 4 == 0) model.steps.push_back({Kind::kNfkc, "", ""});
  model.cuts = {coin() ? "BertPreTokenizer" : "Whitespace"};
  if (coin()) model.cuts.push_back("Digits");
  for (const char* text : {"[a", "a]", "b.", "[a]"}) {
    if (coin()) continue;
    const auto id = static_cast<std::uint32_t>(model.tokens.size() + model.added.size());
    model.added.push_back({text, id, coin(), false, coin(), false});
  }
  return model;
}

struct Twin {
  WordPieceModel model;
  std::vector<TextNormalizer> steps;
  std::map<std::string, std::uint32_t> ids;

  explicit Twin(WordPieceModel given) : model(std::move(given)) {
    for (const NormalizerStep& step : model.steps) steps.emplace_back(std::vector{step});
    for (std::uint32_t id = 0; id < model.tokens.size(); ++id) ids[model.tokens[id]] = id;
  }

  void encode_word(const std::string& word, Ids* out) const {
    const std::vector<std::string> all = characters(word);
    Ids found;
    for (std::size_t at = 0; at < all.size();) {
      std::size_t end = all.size();
      for (; end > at; --end) {
        std::string piece = at == 0 ? "" : model.prefix;
        for (std::size_t i = at; i < end; ++i) piece += all[i];
        const auto known = ids.find(piece);
        if (known == ids.end()) continue;
        found.push_back(known->second);
        break;
      }
      if (end == at || all.size() > model.longest_word) return out->push_back(model.unknown);
      at = end;
    }
    out->insert(out->end(), found.begin(), found.end());
  }

  void encode_part(std::string text, Ids* out) {
    for (TextNormalizer& step : steps) text = std::string(step.normalize(text));
    const CodePoints word =
        (CodePoints::words() & ~CodePoints({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}})) |
        CodePoints(0x200C, 0x200D);
    std::string current;
    bool last = false;
    const auto flush = [&] {
      if (!current.empty()) encode_word(current, out);
      current.clear();
    };
    for (const std::string& one : characters(text)) {
      const auto c = decode_utf8(reinterpret_cast<const std::uint8_t*>(one.data())).value;
      const bool is_word = model.cuts[0] != "Whitespace" || word.contains(c);
      const bool alone =
          (model.cuts.size() == 2 && CodePoints::numeric().contains(c)) ||
          (model.cuts[0] == "BertPreTokenizer" && CodePoints::punctuation().contains(c));
      const bool space = CodePoints::white_space().contains(c);
      if (space || alone || is_word != last) flush();
      last = is_word;
      if (space) continue;
      current += one;
      if (alone) flush();
    }
    flush();
  }

  Ids encode(const std::string& document) {
    Ids result;
    std::size_t from = 0, at = 0;
    while (at < document.size()) {
      const AddedToken* best = nullptr;
      for (const AddedToken& token : model.added) {
        if (document.compare(at, token.content.size(), token.content) != 0) continue;
        if (best == nullptr || token.content.size() > best->content.size()) best = &token;
      }
      if (best == nullptr) {
        ++at;
        continue;
      }
      std::size_t begin = at;
      at += best->content.size();
      if (best->special && !model.encode_specials) continue;
      while (best->lstrip && begin > from) {
        const std::string last = characters(document.substr(from, begin - from)).back();
        const auto* data = reinterpret_cast<const std::uint8_t*>(last.data());
        if (!CodePoints::white_space().contains(decode_utf8(data).value)) break;
        begin -= last.size();
      }
      if (begin > from) encode_part(document.substr(from, begin - from), &result);
      result.push_back(best->id);
      from = at;
    }
    if (from < document.size()) encode_part(document.substr(from), &result);
    return result;
  }
};

Bench<Twin> make_bench(unsigned choice) {
  Bench<Twin> bench{Twin(random_model(choice))};
  for (const Level level : levels()) {
    const std::size_t cache = choice & 1 ? 1 << 12 : 1 << 20;
    const WordPieceModel& model = bench.twin.model;
    bench.encoders.push_back(make_wordpiece_encoder(model, model.tokens.size() + model.added.size(),
                                                    true, cache, level));
  }
  return bench;
}

}  // namespace
}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack::test;
  if (size < 2) return 0;
  compare(bench_of(data[0] << 8 | data[1], 64, make_bench), as_text(data + 2, size - 2), 40);
  return 0;
}

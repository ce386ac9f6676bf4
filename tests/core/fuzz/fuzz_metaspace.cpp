// The BPE and the Unigram of a tokenizer.json with U+2581 for a space against a slow twin that
// knows no words, at every level, with added tokens of all kinds.
//
// The first two bytes choose a model; 0xFF in the rest separates documents.
#include <algorithm>
#include <map>
#include <random>

#include "core/sentencepiece/folded.hpp"
#include "core/sentencepiece/metaspace_encoder.hpp"
#include "encoding.hpp"

namespace tokpack::test {
namespace {

const std::string kBlock(kLowerBlock);
std::vector<std::string> white_space() {
  std::vector<std::string> all = {
      "\t",           "\n",          "\v",           "\f",           "\r",           " ",
      "\xc2\x85",     "\xc2\xa0",    "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
      "\xe2\x81\x9f", "\xe3\x80\x80"};
  for (char last = '\x80'; last <= '\x8a'; ++last) all.push_back(std::string("\xe2\x80") + last);
  return all;
}

const std::vector<std::string> kSpaces = white_space();

void add_tokens(MetaspaceModel* model, std::mt19937& random) {
  for (const char* text : {"<s>", "<s", "s>a", "a b", "\xe4\xb8\xad", "b<"}) {
    if (random() % 2 == 0) continue;
    const auto coin = [&] { return random() % 2 == 0; };
    const bool normalized = coin(), strips = !(normalized && model->normalizes);
    const bool special = coin(), lstrip = strips && coin(), rstrip = strips && coin();
    const auto known = std::find(model->tokens.begin(), model->tokens.end(), text);
    const auto id = static_cast<std::uint32_t>(known - model->tokens.begin());
    if (known == model->tokens.end()) model->tokens.push_back(text);
    model->added.push_back({text, id, special, normalized, lstrip, rstrip});
  }
}

// Short texts of few scores, so that many ways are equally good.
MetaspaceModel random_unigram(std::mt19937& random) {
  MetaspaceModel model;
  const auto coin = [&] { return random() % 2 == 0; };
  UnigramScores scores;
  model.tokens = {"<0>", "<1>", " "};
  for (unsigned byte = 0, bytes = coin() ? 256 : 0; byte < bytes; ++byte) {
    scores.byte_ids.push_back(static_cast<std::uint32_t>(model.tokens.size()));
    model.tokens.push_back("<byte " + std::to_string(byte) + ">");
  }
  const char* characters[] = {"a", "b", " ", "\n", "<", "s", ">", "\xc3\xa9", "\xe4\xb8\xad"};
  for (unsigned i = 0; i < 30; ++i) {
    std::string text;
    for (unsigned size = 1 + random() % 3; size > 0; --size) text += characters[random() % 9];
    if (std::find(model.tokens.begin(), model.tokens.end(), text) == model.tokens.end()) {
      model.tokens.push_back(text);
    }
  }
  const double some[] = {0, -0.1, -0.2, -0.3, -1.1, -2.3, -7.7};
  for (std::size_t i = 0; i < model.tokens.size(); ++i) scores.by_id.push_back(some[random() % 7]);
  model.fuse_unknown = scores.byte_ids.empty();
  model.scores = std::move(scores);
  if (coin()) model.steps.push_back({NormalizerKind::kReplace, "ab", "b"});
  if (coin()) model.steps.push_back({NormalizerKind::kSpaceRuns, "", " "});
  if (coin()) model.steps.push_back({NormalizerKind::kStripRight, "", ""});
  model.cuts_at_spaces = true;
  model.splits_white_space = coin();
  model.prefix =
      model.splits_white_space ? PrefixScheme::kAlways : static_cast<PrefixScheme>(random() % 3);
  model.encode_specials = coin();
  add_tokens(&model, random);
  return model;
}

// Merges of the characters of a sample, in a random order. The ids 0 and 1 are no text's.
MetaspaceModel random_model(unsigned choice) {
  MetaspaceModel model;
  std::mt19937 random(choice);
  if (choice % 3 == 0) return random_unigram(random);
  const auto coin = [&] { return random() % 2 == 0; };
  std::map<std::string, std::uint32_t> ids;
  const auto add = [&](const std::string& text) {
    const auto id = static_cast<std::uint32_t>(model.tokens.size());
    if (!ids.emplace(text, id).second) return ids[text];
    model.tokens.push_back(text);
    return id;
  };
  add("<0>");
  add("<1>");
  if (coin()) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      model.byte_ids.push_back(add("<byte " + std::to_string(byte) + ">"));
    }
  }
  model.fuse_unknown = model.byte_ids.empty() && coin();
  std::vector<std::uint32_t> known;
  for (const char* text : {"a", "b", " ", "\n", "<", "s", ">", "\xc3\xa9", "\xe4\xb8\xad"}) {
    if (text[0] == ' ' || random() % 8 != 0) known.push_back(add(text));
  }
  std::map<std::pair<std::uint32_t, std::uint32_t>, bool> seen;
  for (unsigned i = 0; i < 24; ++i) {
    const std::uint32_t left = known[random() % known.size()];
    const std::uint32_t right = known[random() % known.size()];
    if (!seen.emplace(std::pair(left, right), true).second) continue;
    const std::uint32_t product = add(model.tokens[left] + model.tokens[right]);
    model.merges.push_back({left, right, product});
    known.push_back(product);
  }
  std::shuffle(model.merges.begin(), model.merges.end(), random);
  model.normalizes = coin();
  model.prepends = model.normalizes && coin();
  model.prefix = static_cast<PrefixScheme>(random() % 3);
  model.cuts_at_spaces = coin();
  model.ignore_merges = !model.cuts_at_spaces && coin();
  model.encode_specials = coin();
  add_tokens(&model, random);
  return model;
}

using Ids = std::vector<std::uint32_t>;

struct Twin {
  MetaspaceModel model;
  std::map<std::string, std::uint32_t> ids;  // by folded text

  explicit Twin(MetaspaceModel given) : model(std::move(given)) {
    for (std::uint32_t id = 0; id < model.tokens.size(); ++id) ids[model.tokens[id]] = id;
  }

  std::string pattern(const AddedToken& token) const {
    if (!token.normalized || !model.normalizes) return token.content;
    return (model.prepends ? " " : "") + folded(token.content);
  }

  static std::size_t space_ahead(const std::string& text, std::size_t at) {
    for (const std::string& space : kSpaces) {
      if (text.compare(at, space.size(), space) == 0) return space.size();
    }
    return 0;
  }

  static std::size_t space_before(const std::string& text, std::size_t at) {
    for (const std::string& space : kSpaces) {
      if (text.substr(0, at).ends_with(space)) return space.size();
    }
    return 0;
  }

  // Calls piece(begin, end) for what lies between tokens, and token(id).
  template <class Piece, class Found>
  void split(const std::string& text, bool normalized, Piece&& piece, Found&& found) const {
    std::size_t from = 0, at = 0;
    while (at < text.size()) {
      const AddedToken* best = nullptr;
      for (const AddedToken& token : model.added) {
        if (token.normalized != normalized ||
            text.compare(at, pattern(token).size(), pattern(token)))
          continue;
        if (best == nullptr || pattern(token).size() > pattern(*best).size()) best = &token;
      }
      if (best == nullptr) {
        ++at;
        continue;
      }
      std::size_t begin = at;
      at += pattern(*best).size();
      if (best->special && !model.encode_specials) continue;
      while (best->lstrip && begin > from && space_before(text, begin) != 0) {
        begin -= space_before(text, begin);
      }
      if (begin > from) piece(from, begin);
      found(best->id);
      from = at;
      while (best->rstrip && from < text.size() && space_ahead(text, from) != 0) {
        from += space_ahead(text, from);
      }
    }
    if (from < text.size()) piece(from, text.size());
  }

  Ids symbols(const std::string& text) const {
    Ids result;
    bool after_unknown = false;
    for (const std::string& one : characters(text)) {
      const auto known = ids.find(one);
      if (known != ids.end()) {
        result.push_back(known->second);
      } else if (!model.byte_ids.empty()) {
        for (const char c : one == " " ? kBlock : one) {
          result.push_back(model.byte_ids[static_cast<std::uint8_t>(c)]);
        }
      } else if (!after_unknown || !model.fuse_unknown) {
        result.push_back(model.unknown);
      }
      after_unknown = known == ids.end();
    }
    return result;
  }

  std::size_t known(const std::string& text) const {
    const auto found = ids.find(text);
    return found != ids.end() && found->second < model.scores->by_id.size() ? found->second
                                                                            : ids.size();
  }

  // The best way from the left; the first of equal ways.
  void cut(const std::string& text, Ids* out) const {
    struct Way {
      double sum = -1e300;
      std::size_t begin = 0, id = 0;
    };
    const std::vector<std::string> all = characters(text);
    std::vector<Way> ways(all.size() + 1);
    ways[0].sum = 0;
    const auto& scores = model.scores->by_id;
    const double worst = *std::min_element(scores.begin(), scores.end()) - 10;
    for (std::size_t begin = 0; begin < all.size(); ++begin) {
      std::string piece;
      for (std::size_t end = begin + 1; end <= all.size() && piece.size() < 16; ++end) {
        piece += all[end - 1];
        const std::size_t id = known(piece);
        if (id == ids.size() && end > begin + 1) continue;
        const double sum = ways[begin].sum + (id == ids.size() ? worst : scores[id]);
        if (sum > ways[end].sum) ways[end] = {sum, begin, id == ids.size() ? model.unknown : id};
      }
    }
    std::vector<std::pair<std::string, std::size_t>> pieces;
    for (std::size_t end = all.size(); end > 0; end = ways[end].begin) {
      std::string piece;
      for (std::size_t i = ways[end].begin; i < end; ++i) piece += all[i];
      const std::size_t id = ways[end].id;
      if (id == model.unknown && !pieces.empty() && pieces.back().second == id) {
        pieces.back().first = piece + pieces.back().first;
      } else {
        pieces.emplace_back(piece, id);
      }
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
      const std::size_t whole = known(piece->first);
      if (piece->second != model.unknown || whole != ids.size() || model.scores->byte_ids.empty()) {
        out->push_back(static_cast<std::uint32_t>(whole != ids.size() ? whole : piece->second));
        continue;
      }
      for (const char c : piece->first) {
        out->push_back(model.scores->byte_ids[static_cast<std::uint8_t>(c)]);
      }
    }
  }

  std::string normal(std::string text) const {
    for (const NormalizerStep& step : model.steps) {
      std::string result;
      for (std::size_t at = 0; at < text.size();) {
        if (step.kind == NormalizerKind::kReplace && text.compare(at, 2, step.from) == 0) {
          result += step.to;
          at += 2;
        } else {
          const bool run =
              step.kind == NormalizerKind::kSpaceRuns && text[at] == ' ' && (result.ends_with(' '));
          if (!run) result += text[at];
          ++at;
        }
      }
      if (step.kind == NormalizerKind::kStripRight) {
        while (const std::size_t size = space_before(result, result.size())) {
          result.resize(result.size() - size);
        }
      }
      text = result;
    }
    return text;
  }

  void merge(const std::string& text, Ids* out) const {
    if (model.scores) return cut(text, out);
    if (const auto whole = ids.find(text); model.ignore_merges && whole != ids.end()) {
      return out->push_back(whole->second);
    }
    Ids word = symbols(text);
    for (;;) {
      std::size_t best = word.size(), rank = model.merges.size();
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        for (std::size_t r = 0; r < rank; ++r) {
          if (model.merges[r].left != word[i] || model.merges[r].right != word[i + 1]) continue;
          best = i;
          rank = r;
        }
      }
      if (best == word.size()) break;
      word[best] = model.merges[rank].product;
      word.erase(word.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    out->insert(out->end(), word.begin(), word.end());
  }

  void encode_segment(std::string text, bool first, Ids* out) const {
    if (model.splits_white_space) {
      std::string words, word;
      for (std::size_t at = 0; at <= text.size(); ++at) {
        const std::size_t space = at < text.size() ? space_ahead(text, at) : 1;
        if (space == 0) {
          word += text[at];
          continue;
        }
        if (!word.empty()) words += folded(word)[0] == ' ' ? word : " " + word;
        word.clear();
        at += space - 1;
      }
      if (words.empty()) return;
      text = words;
    }
    text = folded(text);
    const bool prefixed =
        model.prefix == PrefixScheme::kAlways || (model.prefix == PrefixScheme::kFirst && first);
    if (prefixed && text[0] != ' ') text = " " + text;
    std::size_t from = 0;
    for (std::size_t at = 1; at < text.size(); ++at) {
      if (!model.cuts_at_spaces || text[at] != ' ') continue;
      merge(text.substr(from, at - from), out);
      from = at;
    }
    merge(text.substr(from), out);
  }

  Ids encode(const std::string& document) const {
    Ids result;
    const auto token = [&](std::uint32_t id) { result.push_back(id); };
    split(
        document, false,
        [&](std::size_t begin, std::size_t end) {
          std::string part = document.substr(begin, end - begin);
          if (model.normalizes) part = (model.prepends ? " " : "") + folded(part);
          part = normal(part);
          split(
              part, true,
              [&](std::size_t from, std::size_t to) {
                encode_segment(part.substr(from, to - from), begin == 0 && from == 0, &result);
              },
              token);
        },
        token);
    return result;
  }
};

Bench<Twin> make_bench(unsigned choice) {
  Bench<Twin> bench{Twin(random_model(choice))};
  for (const Level level : levels()) {
    const std::size_t cache = choice & 1 ? 1 << 12 : 1 << 20;
    bench.encoders.push_back(make_metaspace_encoder(
        bench.twin.model, bench.twin.model.tokens.size(), true, cache, level));
  }
  return bench;
}

}  // namespace
}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack::test;
  if (size < 2) return 0;
  compare(bench_of(data[0] << 8 | data[1], 64, make_bench), as_text(data + 2, size - 2), 6);
  return 0;
}

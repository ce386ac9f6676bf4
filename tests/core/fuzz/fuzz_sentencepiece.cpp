// SentencePiece's pieces against a slow twin that knows no words, at every level; and model files
// of any bytes, which are refused or encode something.
//
// The first byte chooses a model, or that the rest is one; 0xFF in the rest separates documents.
#include <cmath>
#include <map>
#include <random>
#include <stdexcept>

#include "core/sentencepiece/piece_encoder.hpp"
#include "encoding.hpp"

namespace tokpack::test {
namespace {

const std::string kBlock = "\xe2\x96\x81";

// Pieces that are runs of the characters of a sample, in a shuffled order of scores, some equal.
PieceModelFile random_model(unsigned choice) {
  PieceModelFile model;
  model.type = (choice & 1) ? PieceModelType::kBpe : PieceModelType::kUnigram;
  model.byte_fallback = (choice & 2) != 0;
  model.dummy_prefix = (choice & 4) != 0;
  model.remove_extra_whitespace = (choice & 8) != 0;
  const bool words = (choice & 16) != 0;  // a block only begins pieces, as in most models
  std::mt19937 random(choice);
  const auto score = [&] { return -static_cast<float>(random() % 400) / 16.0f; };
  model.pieces.push_back({"<unk>", 0, PieceType::kUnknown});
  model.pieces.push_back({"</s>", 0, PieceType::kControl});
  for (unsigned byte = 0; model.byte_fallback && byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    model.pieces.push_back({name, 0, PieceType::kByte});
  }
  std::string sample = "the cat and the other cats  that they have, it's aaaaaaaaaaaaaaaa \n\n\n12";
  sample += "\xc3\xa9t\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87\xe4\xb8\xad    \xf0\x9f\x98\x80.";
  std::string escaped;
  for (const char c : sample) escaped += c == ' ' ? kBlock : std::string(1, c);
  const auto all = characters(escaped);
  std::map<std::string, bool> seen;
  for (unsigned i = 0; i < 220; ++i) {
    const std::size_t from = random() % all.size();
    const std::size_t size = i < 40 ? 1 : 2 + random() % (i < 200 ? 5 : 15);
    std::string text;
    for (std::size_t at = from; at < std::min(all.size(), from + size); ++at) {
      if (words && at > from && all[at] == kBlock && all[at - 1] != kBlock) break;
      text += all[at];
    }
    if (!seen.emplace(text, true).second) continue;
    const bool own = model.type == PieceModelType::kBpe && random() % 16 == 0;
    model.pieces.push_back({text, score(), own ? PieceType::kUserDefined : PieceType::kNormal});
  }
  return model;
}

std::string normalized(const PieceModelFile& model, std::string text) {
  if (model.remove_extra_whitespace) {
    // Symbols of the user are found in the text as it is; none has a space.
    std::string once;
    for (const char c : text) {
      if (c != ' ' || (!once.empty() && once.back() != ' ')) once += c;
    }
    text = once;
  }
  if (text.empty()) return "";
  std::string result = model.dummy_prefix ? kBlock : "";
  for (const char c : text) result += c == ' ' ? kBlock : std::string(1, c);
  while (model.remove_extra_whitespace && result.ends_with(kBlock)) {
    result.resize(result.size() - kBlock.size());
  }
  return result;
}

struct Twin {
  PieceModelFile model;
  std::map<std::string, std::uint32_t> ids;
  std::size_t longest = 0;
  float unknown = 0;

  explicit Twin(PieceModelFile file) : model(std::move(file)) {
    float least = std::numeric_limits<float>::max();
    for (std::uint32_t id = 0; id < model.pieces.size(); ++id) {
      const Piece& piece = model.pieces[id];
      if (piece.type == PieceType::kNormal) least = std::min(least, piece.score);
      if (piece.type != PieceType::kNormal && piece.type != PieceType::kUserDefined) continue;
      ids[piece.text] = id;
      longest = std::max(longest, piece.text.size());
    }
    unknown = least - 10.0f;
  }

  bool is_symbol(const std::string& text) const {
    const auto found = ids.find(text);
    return found != ids.end() && model.pieces[found->second].type == PieceType::kUserDefined;
  }

  std::vector<std::string> merge(const std::string& text) const {
    std::vector<std::string> parts;
    std::vector<bool> frozen;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t size = std::min(longest, text.size() - at);
      while (size > 0 && !is_symbol(text.substr(at, size))) --size;
      frozen.push_back(size > 0);
      if (size == 0) size = characters(text.substr(at, 4))[0].size();
      parts.push_back(text.substr(at, size));
      at += size;
    }
    for (;;) {
      std::size_t best = parts.size();
      float score = 0;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ids.find(parts[i] + parts[i + 1]);
        if (frozen[i] || frozen[i + 1] || found == ids.end()) continue;
        const float here = model.pieces[found->second].score;
        if (best == parts.size() || here > score) {
          best = i;
          score = here;
        }
      }
      if (best == parts.size()) return parts;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      frozen.erase(frozen.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }

  std::vector<std::string> best_way(const std::string& text) const {
    struct Node {
      float sum = 0;
      std::size_t begin = 0;
      bool there = false;
    };
    std::vector<Node> nodes(text.size() + 1);
    std::size_t at = 0;
    for (const std::string& one : characters(text)) {
      if (std::abs(nodes[at].sum) > 100000.0f) {
        const float offset = nodes[at].sum;
        for (std::size_t i = at; i < nodes.size(); ++i) {
          if (i == at || nodes[i].there) nodes[i].sum -= offset;
        }
      }
      for (std::size_t size = 1; size <= std::min(longest, text.size() - at); ++size) {
        const auto found = ids.find(text.substr(at, size));
        const bool alone = size == one.size() && found == ids.end();
        if (found == ids.end() && !alone) continue;
        const float sum = (alone ? unknown : model.pieces[found->second].score) + nodes[at].sum;
        Node& node = nodes[at + size];
        if (!node.there || sum > node.sum) node = {sum, at, true};
      }
      at += one.size();
    }
    std::vector<std::string> parts;
    for (std::size_t end = text.size(); end > 0; end = nodes[end].begin) {
      parts.insert(parts.begin(), text.substr(nodes[end].begin, end - nodes[end].begin));
    }
    return parts;
  }

  std::vector<std::uint32_t> encode(const std::string& document) const {
    const std::string text = normalized(model, document);
    std::vector<std::uint32_t> result;
    const std::vector<std::uint32_t> bytes = model.byte_ids();
    bool after_unknown = false;
    for (const auto& part : model.type == PieceModelType::kBpe ? merge(text) : best_way(text)) {
      const auto found = ids.find(part);
      if (found != ids.end()) {
        result.push_back(found->second);
      } else if (model.byte_fallback) {
        for (const char c : part) result.push_back(bytes[static_cast<std::uint8_t>(c)]);
      } else if (!after_unknown) {
        result.push_back(model.unknown);
      }
      after_unknown = found == ids.end();
    }
    return result;
  }
};

Bench<Twin> make_bench(unsigned choice) {
  Bench<Twin> bench{Twin(random_model(choice))};
  for (const Level level : levels()) {
    const std::size_t cache = choice & 32 ? 1 << 12 : 1 << 20;
    bench.encoders.push_back(make_piece_encoder(bench.twin.model, true, cache, level));
  }
  return bench;
}

void try_model(const std::uint8_t* data, std::size_t size) {
  try {
    const auto model = PieceModelFile::parse({data, size});
    if (!model.why_not_native().empty()) return;
    const auto encoder = make_piece_encoder(model, true, 1 << 12, Level::kScalar);
    encode_as<std::int32_t>(*encoder,
                            {"the cat", "  \xe4\xb8\xad\xe6\x96\x87 \n", std::string(300, 'a')});
  } catch (const std::invalid_argument&) {
  }
}

}  // namespace
}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack::test;
  if (size == 0) return 0;
  if (data[0] >= 192) {
    try_model(data + 1, size - 1);
    return 0;
  }
  compare(bench_of(data[0] % 64, 64, make_bench), as_text(data + 1, size - 1), 3);
  return 0;
}

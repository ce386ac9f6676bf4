#include "core/sentencepiece/piece_unigram.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/sentencepiece/folded.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

constexpr float kUnknownPenalty = 10.0f;

// A float below 2^17 is rounded by at most 2^-8, once for each character that a way has; two ways
// that are further apart than both their errors are not confused.
constexpr double kFloatDistance = 1.0 / 128;

// The same for doubles, for scores up to 1 and texts below 2^31 bytes.
constexpr double kDoubleDistance = 1.0 / (1 << 20);

// A user-defined symbol has a score above all pieces, the longer the higher.
float score_of(const Piece& piece) {
  if (piece.type != PieceType::kUserDefined) return piece.score;
  return static_cast<float>(0.1 * (static_cast<double>(piece.text.size()) - 1));
}

}  // namespace

PieceUnigram::PieceUnigram(const PieceModelFile& model)
    : unknown_(model.unknown),
      least_distance_(kFloatDistance),
      byte_ids_(model.byte_ids()),
      scores_(model.pieces.size()) {
  float least = std::numeric_limits<float>::max();
  std::vector<PieceTrie::Entry> entries;
  for (std::uint32_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.type == PieceType::kNormal) least = std::min(least, piece.score);
    if (is_usable(piece)) entries.push_back({folded(piece.text), id, score_of(piece)});
  }
  const float unknown_score = least - kUnknownPenalty;
  unknown_score_ = unknown_score;
  largest_ = std::abs(unknown_score);
  scores_[unknown_] = unknown_score;
  for (const PieceTrie::Entry& entry : entries) {
    scores_[entry.id] = score_of(model.pieces[entry.id]);
    largest_ = std::max(largest_, std::abs(scores_[entry.id]));
  }
  // Of an unknown character the first byte has the score.
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    if ((byte & 0xC0) != 0x80) scores_[byte_ids_[byte]] = unknown_score;
  }
  trie_ = PieceTrie(std::move(entries));
}

PieceUnigram::PieceUnigram(std::span<const std::string> tokens, const UnigramScores& scores)
    : unknown_(scores.unknown), least_distance_(0), fuses_(true), byte_ids_(scores.byte_ids) {
  double least = std::numeric_limits<double>::max(), largest = 1;
  std::vector<PieceTrie::Entry> entries;
  for (std::uint32_t id = 0; id < scores.by_id.size(); ++id) {
    const double score = scores.by_id[id];
    least = std::min(least, score);
    largest = std::max(largest, std::abs(score));
    if (!tokens[id].empty()) entries.push_back({tokens[id], id, score});
  }
  unknown_score_ = least - kUnknownPenalty;
  least_distance_ = std::max(largest, std::abs(unknown_score_)) * kDoubleDistance;
  trie_ = PieceTrie(std::move(entries));
}

// Viterbi: nodes[i] is the best way to byte i of the word, after a text of the sum. The first of
// equal ways stays.
template <bool kSecond, class Sum>
void PieceUnigram::find_best(std::string_view word, Sum sum, std::vector<Node<Sum>>* nodes) const {
  constexpr Sum kNoSum = -std::numeric_limits<Sum>::infinity();
  nodes->assign(word.size() + 1, {kNoSum, kNoSum, kNone, kNone});
  Node<Sum>* all = nodes->data();
  all[0].sum = sum;
  std::size_t frontier = 0;
  const auto offer = [&](std::size_t begin, std::size_t end, Sum score, std::uint32_t piece) {
    frontier = std::max(frontier, end);
    Node<Sum>& node = all[end];
    const Sum candidate = score + all[begin].sum;
    if (node.begin == kNone || candidate > node.sum) {
      if constexpr (kSecond) node.second = node.sum;
      node.sum = candidate;
      node.piece = piece;
      node.begin = static_cast<std::uint32_t>(begin);
    } else if constexpr (kSecond) {
      node.second = std::max(node.second, candidate);
    }
  };
  for (std::size_t begin = 0; begin < word.size();) {
    if constexpr (std::is_same_v<Sum, float>) {
      const float offset = all[begin].sum;
      if (std::abs(offset) > kReset) {
        for (std::size_t i = begin; i <= frontier; ++i) {
          if (i == begin || all[i].begin != kNone) all[i].sum -= offset;
        }
      }
    }
    const std::size_t size =
        std::min(word.size() - begin, character_size(static_cast<std::uint8_t>(word[begin])));
    bool single = false;
    trie_.prefixes(word, begin, [&](std::size_t end, std::uint32_t piece, double score) {
      offer(begin, end, static_cast<Sum>(score), piece);
      single |= end - begin == size;
    });
    if (!single) offer(begin, begin + size, static_cast<Sum>(unknown_score_), kNone);
    begin += size;
  }
}

template <class Sum>
void PieceUnigram::write(std::string_view word, const std::vector<Node<Sum>>& nodes,
                         std::vector<std::uint32_t>* ids) {
  path_.clear();
  for (std::size_t end = word.size(); end > 0; end = nodes[end].begin) {
    path_.push_back(static_cast<std::uint32_t>(end));
  }
  for (auto at = path_.rbegin(); at != path_.rend(); ++at) {
    const Node<Sum>& node = nodes[*at];
    const std::uint32_t id = id_of(node.piece);
    if (id != unknown_) {
      ids->push_back(id);
      continue;
    }
    // The last of a run of unknown ones.
    while (fuses_ && at + 1 != path_.rend() && id_of(nodes[*(at + 1)].piece) == unknown_) ++at;
    write_unknown(word.substr(node.begin, *at - node.begin), ids);
  }
}

void PieceUnigram::write_unknown(std::string_view text, std::vector<std::uint32_t>* ids) const {
  const std::uint32_t whole = fuses_ ? trie_.find(text) : kNone;
  if (whole != kNone || byte_ids_.empty()) {
    ids->push_back(whole != kNone ? whole : unknown_);
    return;
  }
  for (const char c : text) {
    for (const char byte : c == ' ' ? kLowerBlock : std::string_view(&c, 1)) {
      ids->push_back(byte_ids_[static_cast<std::uint8_t>(byte)]);
    }
  }
}

bool PieceUnigram::encode(std::string_view word, std::vector<std::uint32_t>* ids) {
  if (word.find(kLowerBlock) != std::string_view::npos) return encode(folded(word), ids);
  find_best<true>(word, 0.0, &exact_nodes_);
  const auto characters =
      word.size() - static_cast<std::size_t>(std::count_if(word.begin(), word.end(), [](char byte) {
        return (static_cast<std::uint8_t>(byte) & 0xC0) == 0x80;
      }));
  const double distance = least_distance_ * static_cast<double>(characters + 1);
  for (std::size_t end = word.size(); end > 0; end = exact_nodes_[end].begin) {
    if (exact_nodes_[end].sum - exact_nodes_[end].second < distance) return false;
  }
  write(word, exact_nodes_, ids);
  return true;
}

void PieceUnigram::encode_after(std::string_view word, float* sum,
                                std::vector<std::uint32_t>* ids) {
  if (word.find(kLowerBlock) != std::string_view::npos) return encode_after(folded(word), sum, ids);
  find_best<false>(word, *sum, &nodes_);
  *sum = nodes_[word.size()].sum;
  write(word, nodes_, ids);
}

void PieceUnigram::encode_after(std::string_view word, double* sum,
                                std::vector<std::uint32_t>* ids) {
  find_best<false>(word, *sum, &exact_nodes_);
  *sum = exact_nodes_[word.size()].sum;
  write(word, exact_nodes_, ids);
}

}  // namespace tokpack

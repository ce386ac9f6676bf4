#include "core/sentencepiece/piece_unigram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "core/sentencepiece/folded.hpp"

namespace tokpack {
namespace {

constexpr float kUnknownPenalty = 10.0f;
constexpr std::size_t kMaxNodes = std::size_t{1} << 28;

constexpr std::uint64_t slot_of(std::uint64_t key) { return (key * 0x9E3779B97F4A7C15ull) >> 32; }

// A sum below 2^17 is rounded by at most 2^-8, once for each character that a way has; two ways
// that are further apart than both their errors are not confused.
double least_distance(std::size_t characters) { return static_cast<double>(characters + 1) / 128; }

// How many beginnings sorted texts have, each counted once.
std::size_t count_prefixes(const std::vector<std::pair<std::string, std::uint32_t>>& texts) {
  std::size_t count = 0;
  std::string_view before;
  for (const auto& [text, id] : texts) {
    const auto same = std::mismatch(text.begin(), text.end(), before.begin(), before.end()).first;
    count += static_cast<std::size_t>(text.end() - same);
    before = text;
  }
  return count;
}

}  // namespace

PieceUnigram::PieceUnigram(const PieceModelFile& model)
    : unknown_(model.unknown),
      byte_ids_(model.byte_ids()),
      scores_(model.pieces.size()),
      pieces_(1, kNone) {
  float least = std::numeric_limits<float>::max();
  std::vector<std::pair<std::string, std::uint32_t>> texts;
  for (std::uint32_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.type == PieceType::kNormal) least = std::min(least, piece.score);
    if (is_usable(piece)) texts.emplace_back(folded(piece.text), id);
  }
  std::sort(texts.begin(), texts.end());
  const std::size_t nodes = count_prefixes(texts);
  if (nodes >= kMaxNodes) throw std::invalid_argument("its pieces are too long");
  unknown_score_ = least - kUnknownPenalty;
  largest_ = std::abs(unknown_score_);
  scores_[unknown_] = unknown_score_;
  children_ = HugeArray<std::uint64_t>(std::bit_ceil(nodes * 2 + 16));
  mask_ = children_.size() - 1;
  for (const auto& [text, id] : texts) {
    add(text, id);
    scores_[id] = model.pieces[id].score;
    largest_ = std::max(largest_, std::abs(scores_[id]));
  }
  // Of an unknown character the first byte has the score.
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    if ((byte & 0xC0) != 0x80) scores_[byte_ids_[byte]] = unknown_score_;
  }
}

void PieceUnigram::add(std::string_view text, std::uint32_t id) {
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    std::uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<std::uint32_t>(pieces_.size());
      pieces_.push_back(kNone);
      if (node == 0) {
        first_[byte] = next;
      } else {
        const std::uint64_t key = std::uint64_t{node} << 8 | byte;
        std::uint64_t slot = slot_of(key) & mask_;
        while (children_[slot] != 0) slot = (slot + 1) & mask_;
        children_[slot] = key << 28 | next;
      }
    }
    node = next;
  }
  pieces_[node] = id;
}

std::uint32_t PieceUnigram::child(std::uint32_t node, std::uint8_t byte) const {
  if (node == 0) return first_[byte];
  const std::uint64_t key = std::uint64_t{node} << 8 | byte;
  for (std::uint64_t slot = slot_of(key) & mask_;; slot = (slot + 1) & mask_) {
    const std::uint64_t entry = children_[slot];
    if (entry == 0) return 0;
    if (entry >> 28 == key) return static_cast<std::uint32_t>(entry & (kMaxNodes - 1));
  }
}

// Viterbi: nodes[i] is the best way to byte i of the word, after a text of the sum. The first of
// equal ways stays.
template <class Sum>
void PieceUnigram::find_best(std::string_view word, Sum sum, std::vector<Node<Sum>>* nodes) const {
  constexpr bool kFloat = std::is_same_v<Sum, float>;
  constexpr Sum kNoSum = -std::numeric_limits<Sum>::infinity();
  nodes->assign(word.size() + 1, {kNoSum, kNoSum, kNone, kNone});
  Node<Sum>* all = nodes->data();
  all[0].sum = sum;
  std::size_t frontier = 0;
  const auto offer = [&](std::size_t begin, std::size_t end, float score, std::uint32_t id) {
    frontier = std::max(frontier, end);
    Node<Sum>& node = all[end];
    const Sum candidate = score + all[begin].sum;
    if (node.begin == kNone || candidate > node.sum) {
      if constexpr (!kFloat) node.second = node.begin == kNone ? kNoSum : node.sum;
      node.sum = candidate;
      node.id = id;
      node.begin = static_cast<std::uint32_t>(begin);
    } else if constexpr (!kFloat) {
      node.second = std::max(node.second, candidate);
    }
  };
  for (std::size_t begin = 0; begin < word.size();) {
    if constexpr (kFloat) {
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
    std::uint32_t node = 0;
    for (std::size_t end = begin; end < word.size();) {
      node = child(node, static_cast<std::uint8_t>(word[end++]));
      if (node == 0) break;
      const std::uint32_t id = pieces_[node];
      if (id == kNone) continue;
      offer(begin, end, scores_[id], id);
      single |= end - begin == size;
    }
    if (!single) offer(begin, begin + size, unknown_score_, unknown_);
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
  for (auto end = path_.rbegin(); end != path_.rend(); ++end) {
    const Node<Sum>& node = nodes[*end];
    if (node.id != unknown_ || byte_ids_.empty()) {
      ids->push_back(node.id);
      continue;
    }
    std::string_view bytes = word.substr(node.begin, *end - node.begin);
    if (bytes == " ") bytes = kLowerBlock;
    for (const char c : bytes) ids->push_back(byte_ids_[static_cast<std::uint8_t>(c)]);
  }
}

bool PieceUnigram::encode(std::string_view word, std::vector<std::uint32_t>* ids) {
  if (word.find(kLowerBlock) != std::string_view::npos) return encode(folded(word), ids);
  find_best(word, 0.0, &exact_nodes_);
  const double distance = least_distance(word.size());
  for (std::size_t end = word.size(); end > 0; end = exact_nodes_[end].begin) {
    if (exact_nodes_[end].sum - exact_nodes_[end].second < distance) return false;
  }
  write(word, exact_nodes_, ids);
  return true;
}

void PieceUnigram::encode_after(std::string_view word, float* sum,
                                std::vector<std::uint32_t>* ids) {
  if (word.find(kLowerBlock) != std::string_view::npos) return encode_after(folded(word), sum, ids);
  find_best(word, *sum, &nodes_);
  *sum = nodes_[word.size()].sum;
  write(word, nodes_, ids);
}

}  // namespace tokpack

#include "core/sentencepiece/piece_bpe.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <stdexcept>
#include <utility>

#include "core/sentencepiece/folded.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

// By piece, how many scores are better than its own.
std::vector<std::uint32_t> ranks_of(const std::vector<Piece>& pieces) {
  std::vector<float> scores;
  for (const Piece& piece : pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<std::uint32_t> ranks;
  for (const Piece& piece : pieces) {
    const auto at = std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
    ranks.push_back(static_cast<std::uint32_t>(at - scores.begin()));
  }
  return ranks;
}

// Calls each(text) for the characters of a text.
template <class Each>
void for_characters(std::string_view text, Each&& each) {
  while (!text.empty()) {
    const std::size_t size =
        std::min(text.size(), character_size(static_cast<std::uint8_t>(text[0])));
    each(text.substr(0, size));
    text.remove_prefix(size);
  }
}

bool is_character(std::string_view text) {
  return character_size(static_cast<std::uint8_t>(text[0])) == text.size();
}

// A number for each character, and for what is none some number.
std::uint32_t code_of(std::string_view character) {
  std::uint32_t code = 0;
  for (const char c : character) code = code << 8 | static_cast<std::uint8_t>(c);
  return code;
}

}  // namespace

PieceBpe::PieceBpe(const PieceModelFile& model)
    : unknown_(model.unknown), byte_ids_(model.byte_ids()), pieces_(model.pieces.size()) {
  std::vector<AddedToken> symbols;
  for (std::uint32_t id = 0; id < pieces_; ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.type == PieceType::kUserDefined && is_usable(piece)) {
      symbols.push_back({folded(piece.text), id, false, false});
    }
  }
  user_defined_ = AddedTokenMatcher(std::move(symbols));
  learn_merges(model);
}

PieceBpe::PieceBpe(std::span<const std::string> tokens, std::span<const Merge> merges,
                   std::vector<std::uint32_t> byte_ids, std::uint32_t unknown)
    : unknown_(unknown), byte_ids_(std::move(byte_ids)), pieces_(tokens.size()) {
  ascii_.fill(kNone);
  for (std::uint32_t id = 0; id < pieces_; ++id) {
    if (!tokens[id].empty() && is_character(tokens[id])) set_character(tokens[id], id);
  }
  products_ = ProductTable(merges);
}

void PieceBpe::set_character(std::string_view text, std::uint32_t symbol) {
  if (text.size() == 1) {
    ascii_[static_cast<std::uint8_t>(text[0])] = symbol;
  } else {
    characters_.emplace(code_of(text), symbol);
  }
}

void PieceBpe::learn_merges(const PieceModelFile& model) {
  ascii_.fill(kNone);
  std::unordered_map<std::string, std::uint32_t> symbols;
  symbols.reserve(pieces_ * 2);
  std::vector<std::pair<std::string, std::uint32_t>> pieces;
  for (std::uint32_t id = 0; id < pieces_; ++id) {
    if (!is_usable(model.pieces[id])) continue;
    std::string text = folded(model.pieces[id].text);
    if (is_character(text)) set_character(text, id);
    symbols.emplace(text, id);
    pieces.emplace_back(std::move(text), id);
  }
  auto next = static_cast<std::uint32_t>(pieces_);
  for (const auto& [text, id] : pieces) {
    for_characters(text, [&](std::string_view one) {
      if (!symbols.emplace(one, next).second) return;
      set_character(one, next++);
    });
  }
  if (next > kMaxPieces) throw std::invalid_argument("it has too many pieces and characters");

  const std::vector<std::uint32_t> ranks = ranks_of(model.pieces);
  std::vector<ProductTable::Entry> pairs;
  std::string half;
  for (const auto& [text, id] : pieces) {
    for (std::size_t at = 1; at < text.size(); ++at) {
      if ((static_cast<std::uint8_t>(text[at]) & 0xC0) == 0x80) continue;
      const auto left = symbols.find(half.assign(text, 0, at));
      if (left == symbols.end()) continue;
      const auto right = symbols.find(half.assign(text, at));
      if (right == symbols.end()) continue;
      pairs.push_back({left->second, right->second, {id, ranks[id]}});
    }
  }
  products_ = ProductTable(std::span<const ProductTable::Entry>(pairs));
}

std::uint32_t PieceBpe::character(std::string_view text) const {
  const auto first = static_cast<std::uint8_t>(text[0]);
  if (first < 0x80) return ascii_[first];
  const auto found = characters_.find(code_of(text));
  return found == characters_.end() ? kNone : found->second;
}

void PieceBpe::encode(std::string_view word, std::vector<std::uint32_t>* ids) {
  if (word.find(kLowerBlock) != std::string_view::npos) {
    const std::string other = folded(word);
    return encode(other, ids);
  }
  const auto* text = reinterpret_cast<const std::uint8_t*>(word.data());
  std::size_t from = 0;
  while (!user_defined_.empty()) {
    const auto match = user_defined_.find(text, word.size(), from);
    if (match.begin == word.size()) break;
    encode_part(word.substr(from, match.begin - from), ids);
    ids->push_back(match.id);
    from = match.end;
  }
  encode_part(word.substr(from), ids);
}

void PieceBpe::encode_part(std::string_view part, std::vector<std::uint32_t>* ids) {
  if (part.size() <= kShort) {
    encode_short(part, ids);
  } else {
    encode_long(part, ids);
  }
}

// Symbols in a dense array, the lowest rank found by a scan. products[i] belongs to the symbols i
// and i + 1.
void PieceBpe::encode_short(std::string_view part, std::vector<std::uint32_t>* ids) const {
  std::uint32_t symbols[kShort + 1], begins[kShort + 1], ranks[kShort + 1], products[kShort + 1];
  std::size_t count = 0;
  std::uint32_t begin = 0;
  for_characters(part, [&](std::string_view one) {
    symbols[count] = character(one);
    begins[count++] = begin;
    begin += static_cast<std::uint32_t>(one.size());
  });
  begins[count] = begin;
  const auto look_up = [&](std::size_t i) {
    const Product found = products_.find(symbols[i], symbols[i + 1]);
    products[i] = found.id;
    ranks[i] = found.rank;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    const auto best = static_cast<std::size_t>(std::min_element(ranks, ranks + count - 1) - ranks);
    if (ranks[best] == kNone) break;
    symbols[best] = products[best];
    --count;
    for (std::size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (std::size_t i = best + 1; i <= count; ++i) begins[i] = begins[i + 1];
    for (std::size_t i = best; i + 1 < count; ++i) {
      ranks[i] = ranks[i + 1];
      products[i] = products[i + 1];
    }
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  for (std::size_t i = 0; i < count; ++i) {
    write(symbols[i], part.substr(begins[i], begins[i + 1] - begins[i]), ids);
  }
}

// A linked list of symbols and a heap of candidates, O(n log n). A candidate whose symbols have
// changed since it was entered is skipped.
void PieceBpe::encode_long(std::string_view part, std::vector<std::uint32_t>* ids) {
  symbols_.clear();
  std::uint32_t begin = 0;
  for_characters(part, [&](std::string_view one) {
    const auto size = static_cast<std::uint32_t>(one.size());
    const auto at = static_cast<std::uint32_t>(symbols_.size());
    symbols_.push_back({character(one), begin, size, at - 1, at + 1});
    begin += size;
  });
  const auto end = static_cast<std::uint32_t>(symbols_.size());
  std::vector<std::uint64_t> candidates;  // rank, then position: the leftmost of equals comes first
  for (std::uint32_t i = 0; i + 1 < end; ++i) {
    const std::uint32_t rank = products_.find(symbols_[i].id, symbols_[i + 1].id).rank;
    if (rank != kNone) candidates.push_back(std::uint64_t{rank} << 32 | i);
  }
  std::priority_queue heap(std::greater<>(), std::move(candidates));
  const auto push = [&](std::uint32_t left, std::uint32_t right) {
    const std::uint32_t rank = products_.find(symbols_[left].id, symbols_[right].id).rank;
    if (rank != kNone) heap.push(std::uint64_t{rank} << 32 | left);
  };
  while (!heap.empty()) {
    const auto rank = static_cast<std::uint32_t>(heap.top() >> 32);
    const auto at = static_cast<std::uint32_t>(heap.top());
    heap.pop();
    Symbol& left = symbols_[at];
    if (left.size == 0 || left.next >= end) continue;
    Symbol& right = symbols_[left.next];
    const Product found = products_.find(left.id, right.id);
    if (found.rank != rank) continue;
    left.id = found.id;
    left.size += right.size;
    right.size = 0;
    left.next = right.next;
    if (left.next < end) {
      symbols_[left.next].previous = at;
      push(at, left.next);
    }
    if (left.previous < end) push(left.previous, at);
  }
  for (const Symbol& symbol : symbols_) {
    if (symbol.size != 0) write(symbol.id, part.substr(symbol.begin, symbol.size), ids);
  }
}

// `text` is the symbol's.
void PieceBpe::write(std::uint32_t symbol, std::string_view text,
                     std::vector<std::uint32_t>* ids) const {
  if (symbol < pieces_) {
    ids->push_back(symbol);
    return;
  }
  if (byte_ids_.empty()) {
    ids->push_back(unknown_);
    return;
  }
  if (text == " ") text = kLowerBlock;
  for (const char c : text) ids->push_back(byte_ids_[static_cast<std::uint8_t>(c)]);
}

}  // namespace tokpack

#include "core/sentencepiece/piece_normalizer.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kMaxText = std::numeric_limits<std::int32_t>::max();  // in bytes

void append(std::string_view text, Buffer<std::uint8_t>* out) {
  const std::size_t at = out->size();
  out->resize(at + text.size());
  if (!text.empty()) std::memcpy(out->data() + at, text.data(), text.size());
}

bool ends_with(const Buffer<std::uint8_t>& text, std::size_t from, std::string_view end) {
  return text.size() - from >= end.size() &&
         std::memcmp(text.data() + text.size() - end.size(), end.data(), end.size()) == 0;
}

}  // namespace

PieceNormalizer::PieceNormalizer(const PieceModelFile& model)
    : dummy_prefix_(model.dummy_prefix),
      remove_extra_(model.remove_extra_whitespace),
      map_(model.charsmap) {
  std::vector<AddedToken> symbols;
  for (const Piece& piece : model.pieces) {
    if (piece.type != PieceType::kUserDefined) continue;
    begins_[static_cast<std::uint8_t>(piece.text[0])] = true;
    symbols.push_back({piece.text, 0, false, false});
    longest_user_defined_ = std::max(longest_user_defined_, piece.text.size());
  }
  user_defined_ = AddedTokenMatcher(std::move(symbols));
  const auto may_apply = [&](unsigned a, unsigned b) {
    return map_.may_apply(static_cast<std::uint8_t>(a), static_cast<std::uint8_t>(b));
  };
  for (unsigned a = 0; a < 0x80; ++a) {
    if (begins_[a]) continue;
    for (unsigned b = 0; b < 256; ++b) {
      const bool extra = remove_extra_ && a == ' ' && b == ' ';
      plain_.set(static_cast<std::uint8_t>(a), static_cast<std::uint8_t>(b),
                 !extra && !may_apply(a, b));
    }
  }
}

PieceNormalizer::Step PieceNormalizer::step(const std::uint8_t* text, std::size_t size) const {
  const auto* chars = reinterpret_cast<const char*>(text);
  if (begins_[*text]) {
    const std::size_t window = std::min(size, longest_user_defined_);
    const auto match = user_defined_.find(text, window, 0);
    if (match.begin == 0 && match.end != 0) return {match.end, {chars, match.end}};
  }
  const CharacterMap::Rule rule = map_.longest(text, size);
  if (rule.size != 0) return {rule.size, rule.replacement};
  const std::size_t length = std::min(size, character_size(*text));
  return {length, {chars, length}};
}

// How many bytes at the begin of the text are not changed, whatever comes behind them.
std::size_t PieceNormalizer::kept(const std::uint8_t* text, std::size_t size) const {
  std::size_t at = 0;
  while (at + 1 < size) {
    if (text[at] < 0x80) {
      if (plain_(text + at) == 0) break;
      ++at;
      continue;
    }
    const std::size_t length = character_size(text[at]);
    if (length > size - at || begins_[text[at]] || !map_.leaves(decode_utf8(text + at).value))
      break;
    at += length;
  }
  return at;
}

void PieceNormalizer::append(const std::uint8_t* text, std::size_t size,
                             Buffer<std::uint8_t>* out) const {
  const std::size_t from = out->size();
  std::size_t at = 0;
  while (remove_extra_ && at < size) {
    const Step next = step(text + at, size - at);
    if (next.result != " ") break;
    at += next.size;
  }
  if (at == size) return;
  out->reserve(from + (size - at) + 1);
  if (dummy_prefix_) out->push_back(' ');
  if (map_.empty() && !remove_extra_) {
    return tokpack::append({reinterpret_cast<const char*>(text), size}, out);
  }
  bool after_space = remove_extra_;
  while (at < size) {
    const std::size_t begin = at;
    if (!(after_space && text[at] == ' ')) {
      at += kept(text + at, size - at);
    }
    if (at != begin) {
      tokpack::append({reinterpret_cast<const char*>(text + begin), at - begin}, out);
      after_space = remove_extra_ && text[at - 1] == ' ';
      if (at == size) break;
    }
    const Step next = step(text + at, size - at);
    at += next.size;
    std::string_view result = next.result;
    while (after_space && result.starts_with(' ')) result.remove_prefix(1);
    if (result.empty()) continue;
    tokpack::append(result, out);
    if (out->size() - from > kMaxText) {
      throw std::out_of_range("a document has 2^31 bytes or more when it is normalized");
    }
    after_space = remove_extra_ && result.ends_with(' ');
  }
  while (remove_extra_) {
    if (ends_with(*out, from, " ")) {
      out->resize(out->size() - 1);
    } else if (ends_with(*out, from, kLowerBlock)) {
      out->resize(out->size() - kLowerBlock.size());
    } else {
      break;
    }
  }
}

}  // namespace tokpack

#include "core/sentencepiece/piece_normalizer.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace tokpack {
namespace {

constexpr std::size_t kMaxText = std::numeric_limits<std::int32_t>::max();  // in bytes
constexpr std::size_t kMaxRules = 32;  // that begin a text, of which the library looks at the first

std::uint32_t read_u32(const char* data) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i)
    value |= std::uint32_t{static_cast<std::uint8_t>(data[i])} << 8 * i;
  return value;
}

// The fields of a unit of a double array.
std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FFu; }
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFFu; }

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

CharacterMap::CharacterMap(const std::string& blob) {
  if (blob.empty()) return;
  const auto broken = [] {
    throw std::invalid_argument("its normalization rules (precompiled_charsmap) are broken");
  };
  if (blob.size() <= 4) broken();
  const std::size_t size = read_u32(blob.data());
  if (size >= blob.size() - 4 || size < 1024 || size % 1024 != 0 || blob.back() != '\0') broken();
  units_.resize(size / 4);
  for (std::size_t i = 0; i < units_.size(); ++i) units_[i] = read_u32(blob.data() + 4 + 4 * i);
  replacements_ = blob.substr(4 + size);
}

CharacterMap::Rule CharacterMap::longest(const std::uint8_t* text, std::size_t size) const {
  Rule rule;
  if (empty()) return rule;
  std::uint32_t at = offset_of(units_[0]);
  std::size_t found = 0;
  for (std::size_t i = 0; i < size && found < kMaxRules; ++i) {
    at ^= text[i];
    const std::uint32_t here = unit(at);
    if (label_of(here) != text[i]) break;
    at ^= offset_of(here);
    if (!has_leaf(here)) continue;
    ++found;
    const std::uint32_t value = value_of(unit(at));
    rule.size = value < replacements_.size() ? i + 1 : 0;
    if (rule.size != 0) rule.replacement = replacements_.data() + value;
  }
  return rule;
}

bool CharacterMap::may_apply(std::uint8_t first, std::uint8_t second) const {
  if (empty()) return false;
  std::uint32_t at = offset_of(units_[0]) ^ first;
  std::uint32_t here = unit(at);
  if (label_of(here) != first) return false;
  if (has_leaf(here)) return true;
  at ^= offset_of(here) ^ second;
  return label_of(unit(at)) == second;
}

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
      while (at + 1 < size && plain_(text + at) != 0) ++at;
    }
    if (at != begin) {
      tokpack::append({reinterpret_cast<const char*>(text + begin), at - begin}, out);
      after_space = remove_extra_ && text[at - 1] == ' ';
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

#include "core/sentencepiece/character_map.hpp"

#include <stdexcept>

#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

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
bool is_value(std::uint32_t unit) { return unit >> 31 != 0; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFFu; }

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
  for (std::uint32_t c = 0; c < 0x10000; ++c) {
    const std::uint8_t text[3] = {
        static_cast<std::uint8_t>(c < 0x80    ? c
                                  : c < 0x800 ? 0xC0 | c >> 6
                                              : 0xE0 | c >> 12),
        static_cast<std::uint8_t>(0x80 | ((c < 0x800 ? c : c >> 6) & 0x3F)),
        static_cast<std::uint8_t>(0x80 | (c & 0x3F)),
    };
    const bool touched =
        c < 0x80 ? shortest(text, 1).size != 0 : may_begin(text, c < 0x800 ? 2 : 3);
    if (touched) kept_[c >> 6] &= ~(std::uint64_t{1} << (c & 63));
  }
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

CharacterMap::Rule CharacterMap::shortest(const std::uint8_t* text, std::size_t size) const {
  if (empty()) return {};
  std::uint32_t at = offset_of(units_[0]);
  for (std::size_t i = 0; i < size && text[i] != 0; ++i) {
    at ^= text[i];
    const std::uint32_t here = unit(at);
    if (label_of(here) != text[i]) break;
    at ^= offset_of(here);
    if (!has_leaf(here)) continue;
    const std::uint32_t value = value_of(unit(at));
    if (value >= replacements_.size()) return {i + 1, {}};
    return {i + 1, replacements_.data() + value};
  }
  return {};
}

// Whether a rule is a beginning of this text, or begins with it.
bool CharacterMap::may_begin(const std::uint8_t* text, std::size_t size) const {
  std::uint32_t at = offset_of(units_[0]);
  for (std::size_t i = 0; i < size; ++i) {
    at ^= text[i];
    const std::uint32_t here = unit(at);
    if (label_of(here) != text[i]) return false;
    if (has_leaf(here)) return true;
    at ^= offset_of(here);
  }
  return true;
}

bool CharacterMap::may_apply(std::uint8_t first, std::uint8_t second) const {
  const std::uint8_t text[2] = {first, second};
  return !empty() && may_begin(text, 2);
}

bool CharacterMap::is_sound() const {
  const auto* text = reinterpret_cast<const std::uint8_t*>(replacements_.data());
  if (!utf8_check(Level::kScalar)(text, replacements_.size())) return false;
  for (std::uint32_t at = 0; at < units_.size(); ++at) {
    const std::uint32_t here = units_[at];
    if (is_value(here)) continue;
    // The children of a unit lie in one block of 256 units, whichever byte leads to them.
    const std::uint32_t children = at ^ offset_of(here);
    if (children >= units_.size()) return false;
    if (!has_leaf(here)) continue;
    const std::uint32_t value = value_of(units_[children]);
    if (value > replacements_.size()) return false;
    if (value < replacements_.size() && (text[value] & 0xC0) == 0x80) return false;
  }
  return true;
}

}  // namespace tokpack

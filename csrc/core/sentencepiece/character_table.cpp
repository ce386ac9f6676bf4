#include "core/sentencepiece/character_table.hpp"

#include <cstring>
#include <limits>
#include <utility>

#include "core/text/utf8.hpp"

namespace tokpack {

CharacterTable::CharacterTable(Change change)
    : change_(std::move(change)), pages_(0x110000u >> kPageBits), texts_(kSlack, '\0') {
  for (std::size_t byte = 0; byte < 0x80; ++byte) {
    const char character = static_cast<char>(byte);
    const auto becomes = change_({&character, 1});
    if (!becomes || becomes->size() > 1) continue;
    is_simple_[byte] = true;
    ascii_size_[byte] = static_cast<std::uint8_t>(becomes->size());
    if (!becomes->empty()) ascii_[byte] = static_cast<std::uint8_t>((*becomes)[0]);
  }
}

bool CharacterTable::change(std::string_view text, std::string* out) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::size_t size = text.size();
  // There always is room for the rest of the text as it is, and kSlack bytes.
  out->resize(size + kSlack);
  char* to = out->data();
  std::size_t count = 0;
  for (std::size_t at = 0;;) {
    for (; at < size && is_simple_[data[at]]; ++at) {
      to[count] = static_cast<char>(ascii_[data[at]]);
      count += ascii_size_[data[at]];
    }
    if (at == size) break;
    const CodePoint c = decode_utf8(data + at);
    const Entry& known = entry(c.value, text.substr(at, c.size));
    at += c.size;
    if (known.kind == Kind::kDependent) return false;
    if (known.kind == Kind::kKept) {
      std::memcpy(to + count, data + at - c.size, c.size);
      count += c.size;
      continue;
    }
    if (count + known.size + (size - at) + kSlack > out->size()) {
      out->resize(count + known.size + (size - at) + kSlack + out->size() / 2);
      to = out->data();
    }
    if (known.size <= kSlack) {
      std::memcpy(to + count, texts_.data() + known.begin, kSlack);
    } else {
      std::memcpy(to + count, texts_.data() + known.begin, known.size);
    }
    count += known.size;
  }
  out->resize(count);
  return true;
}

const CharacterTable::Entry& CharacterTable::entry(std::uint32_t code_point,
                                                   std::string_view character) {
  auto& page = pages_[code_point >> kPageBits];
  if (!page) page = std::make_unique<Page>();
  Entry& known = (*page)[code_point & ((1u << kPageBits) - 1)];
  if (known.kind != Kind::kUnknown) return known;
  const auto becomes = change_(character);
  if (!becomes || becomes->size() > std::numeric_limits<std::uint16_t>::max()) {
    known.kind = Kind::kDependent;
  } else if (*becomes == character) {
    known.kind = Kind::kKept;
  } else {
    const std::size_t begin = texts_.size() - kSlack;
    texts_.resize(begin);
    texts_ += *becomes;
    texts_.resize(texts_.size() + kSlack);
    known = {static_cast<std::uint32_t>(begin), static_cast<std::uint16_t>(becomes->size()),
             Kind::kChanged};
  }
  return known;
}

}  // namespace tokpack

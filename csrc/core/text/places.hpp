// Where each byte of a changed text comes from in the original, by the rules of the Hugging Face
// library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/text/utf8.hpp"

namespace tokpack {

// Bytes [begin, end) of a document.
struct TokenOffset {
  std::int32_t begin;
  std::int32_t end;
};

// The place of each byte of a text: all bytes of a character have that of the character.
using Places = std::vector<TokenOffset>;

// Adds the place of each byte of a text that begins at `begin` of a document.
inline void place_characters(std::string_view text, std::size_t begin, Places* places) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size =
        std::min(text.size() - at, character_size(static_cast<std::uint8_t>(text[at])));
    const auto first = static_cast<std::int32_t>(begin + at);
    places->insert(places->end(), size, {first, first + static_cast<std::int32_t>(size)});
    at += size;
  }
}

// Records how a text becomes another one, from its beginning to its end.
class Trail {
 public:
  Trail(std::string_view text, const Places& from, Places* to)
      : text_(text), from_(from), to_(to) {}

  // Bytes [begin, end) stay as they are.
  void keep(std::size_t begin, std::size_t end) {
    const auto first = from_.begin();
    to_->insert(to_->end(), first + static_cast<std::ptrdiff_t>(begin),
                first + static_cast<std::ptrdiff_t>(end));
  }
  // The next `size` bytes come from the place of byte `at`.
  void put(std::size_t size, std::size_t at) { to_->insert(to_->end(), size, from_[at]); }

  // The next character has `size` bytes. It replaces the next character of the text, and `-change`
  // more that are removed; with a change of 1 it is inserted after the last one.
  void change(std::size_t size, std::ptrdiff_t change) {
    if (change > 0) {
      const std::int32_t begin = from_.front().begin;
      to_->insert(to_->end(), size, at_ == 0 ? TokenOffset{begin, begin} : from_[at_ - 1]);
      return;
    }
    to_->insert(to_->end(), size, from_[std::min(at_, from_.size() - 1)]);
    for (; change <= 0 && at_ < text_.size(); ++change) {
      at_ += character_size(static_cast<std::uint8_t>(text_[at_]));
    }
  }

 private:
  std::string_view text_;
  const Places& from_;
  Places* to_;
  std::size_t at_ = 0;  // of the next character, for change()
};

}  // namespace tokpack

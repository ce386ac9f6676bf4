// Whether tokens spell a text: their bytes, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tokpack {

// Token i of a vocabulary has the bytes [ends[i - 1], ends[i]), the first one those from 0.
struct Spelling {
  std::span<const std::uint8_t> bytes;
  std::span<const std::int64_t> ends;  // ascending, at most bytes.size()

  template <class T>
  bool is_of(std::span<const T> tokens, std::span<const std::uint8_t> text) const {
    for (const T token : tokens) {
      if (token >= ends.size()) return false;
      const auto begin = static_cast<std::size_t>(token == 0 ? 0 : ends[token - 1]);
      const auto size = static_cast<std::size_t>(ends[token]) - begin;
      if (size > text.size()) return false;
      if (size > 0 && std::memcmp(bytes.data() + begin, text.data(), size) != 0) return false;
      text = text.subspan(size);
    }
    return text.empty();
  }
};

}  // namespace tokpack

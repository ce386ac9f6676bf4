// What the fuzz targets share. A target is LLVMFuzzerTestOneInput; it aborts on anything wrong.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../check.hpp"
#include "../memory.hpp"

namespace tokpack::test {

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// The input with every byte that is not part of valid UTF-8 made ASCII.
inline std::string repaired(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  const auto continues = [&](std::size_t i) { return i < size && (data[i] & 0xC0) == 0x80; };
  for (std::size_t i = 0; i < size;) {
    const std::uint8_t first = data[i];
    std::size_t length = 1;
    if (first >= 0xC2 && first < 0xE0 && continues(i + 1)) {
      length = 2;
    } else if (first >= 0xE0 && first < 0xF0 && continues(i + 1) && continues(i + 2) &&
               !(first == 0xE0 && data[i + 1] < 0xA0) && !(first == 0xED && data[i + 1] >= 0xA0)) {
      length = 3;
    } else if (first >= 0xF0 && first < 0xF5 && continues(i + 1) && continues(i + 2) &&
               continues(i + 3) && !(first == 0xF0 && data[i + 1] < 0x90) &&
               !(first == 0xF4 && data[i + 1] >= 0x90)) {
      length = 4;
    }
    if (length == 1) text[i] = static_cast<char>(first & 0x7F);
    i += length;
  }
  return text;
}

}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

#include "core/lines.hpp"

#include <cstring>

namespace tokpack {

void split_lines(std::span<const std::uint8_t> block, Buffer<std::int64_t>& spans) {
  const std::uint8_t* const base = block.data();
  std::size_t begin = 0;
  while (begin < block.size()) {
    const void* newline = std::memchr(base + begin, '\n', block.size() - begin);
    const std::size_t end =
        newline ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(newline) - base)
                : block.size();
    spans.push_back(static_cast<std::int64_t>(begin));
    spans.push_back(static_cast<std::int64_t>(end));
    begin = end + 1;
  }
}

}  // namespace tokpack

// Lines of plain text. A line ends at \n alone.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/buffer.hpp"

namespace tokpack {

// Appends begin and end of each line, without its \n. An unterminated last line counts.
void split_lines(std::span<const std::uint8_t> block, Buffer<std::int64_t>& spans);

}  // namespace tokpack

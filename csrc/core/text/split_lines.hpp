// Lines of plain text. A line ends at \n alone.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/buffer.hpp"

namespace tokpack {

// Appends the begin and the end of each line to `spans`, in bytes of the block, without the \n.
// Text after the last \n is a line too.
void split_lines(std::span<const std::uint8_t> block, Buffer<std::int64_t>& spans);

}  // namespace tokpack

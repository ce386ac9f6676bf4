// The JSON texts of a column as an array of one type, in the layout of Arrow.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/buffer.hpp"
#include "core/base/cpu.hpp"

namespace tokpack {

enum class ColumnKind { null, boolean, int64, float64, string, mixed };

// `validity` has a bit for each value, from the lowest of each byte on: 0 for null.
// `data` has the values: bits, int64, double, or the bytes of all strings, whose offsets, one more
// than strings, are in `offsets`.
struct ColumnOutput {
  Buffer<std::uint8_t>& validity;
  Buffer<std::uint8_t>& data;
  Buffer<std::int32_t>& offsets;
  std::int64_t nulls = 0;
};

// Reads a column. `spans` are begin and end in `data` of the text of each value, without white
// space around it; an empty text is null. The column is mixed, and the output must not be read, if
// it has values of several kinds (integers and other numbers are two), lists, objects, integers
// beyond 64 bits, strings with a lone surrogate, 2 GiB of strings, or anything that is not JSON.
// All other values are what Python's json module gives. REQUIRES: each span is inside the data.
ColumnKind read_json_column(std::span<const std::uint8_t> data, std::span<const std::int64_t> spans,
                            Level level, ColumnOutput& output);

}  // namespace tokpack

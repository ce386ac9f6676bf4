// What the JSON extractor and the splitter of JSON values give, as values, for tests and fuzz
// targets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"
#include "core/json/json_lines.hpp"
#include "core/json/json_values.hpp"
#include "memory.hpp"

namespace tokpack::test {

struct Extracted {
  std::string text;
  std::vector<std::int64_t> spans, lines, slow;
  std::int64_t line_count = 0;
  bool operator==(const Extracted&) const = default;
};

// From a block with no byte to spare, so that a sanitizer sees what is read behind it.
inline Extracted extract(std::string_view block, Level level) {
  const Exact input(block);
  Buffer<std::uint8_t> text;
  Buffer<std::int64_t> spans, lines, slow, places;
  Extracted result;
  result.line_count =
      JsonLines("text", level).extract(input.span(), {text, spans, lines, slow, places});
  MUST(text.size() <= block.size());
  for (std::size_t i = 0; i < kStringSlack; ++i) MUST(text.data()[text.size() + i] == 0);
  const auto values = [](const Buffer<std::int64_t>& buffer) {
    return std::vector<std::int64_t>(buffer.data(), buffer.data() + buffer.size());
  };
  result.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  result.spans = values(spans);
  result.lines = values(lines);
  result.slow = values(slow);
  return result;
}

struct SplitValues {
  std::string lines;
  bool finished = false;
  std::uint64_t error = UINT64_MAX;  // its position
  bool operator==(const SplitValues&) const = default;
};

// The records of a text that arrives in these chunks, under a path.
inline SplitValues split_values(const std::vector<std::string_view>& chunks,
                                std::vector<std::string> path = {}) {
  JsonValues values(std::move(path));
  SplitValues result;
  for (const std::string_view chunk : chunks) {
    const Exact input(chunk);
    Buffer<std::uint8_t> out;
    const auto error = values.feed(input.span(), out);
    MUST(out.size() <= 2 * chunk.size());
    if (error) {
      result.error = error->position;
      result.lines.clear();  // what came before the error depends on the cuts
      return result;
    }
    result.lines.append(reinterpret_cast<const char*>(out.data()), out.size());
  }
  result.finished = values.finished();
  return result;
}

}  // namespace tokpack::test

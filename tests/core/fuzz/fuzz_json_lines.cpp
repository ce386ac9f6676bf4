// The extractor: all levels alike, a block gives what its lines give one by one.
#include "../json_results.hpp"
#include "core/text/utf8.hpp"
#include "fuzz.hpp"

namespace tokpack::test {
namespace {

void check_spans(const Extracted& result, std::size_t size) {
  const auto end = static_cast<std::int64_t>(result.text.size());
  const auto documents = static_cast<std::int64_t>(result.lines.size());
  MUST(result.spans.size() == 2 * result.lines.size());
  for (std::size_t i = 0; i < result.lines.size(); ++i) {
    const std::int64_t from = result.spans[2 * i], to = result.spans[2 * i + 1];
    MUST(0 <= from && from <= to && to <= end);
    const auto* text = reinterpret_cast<const std::uint8_t*>(result.text.data()) + from;
    MUST(utf8_check(Level::kScalar)(text, static_cast<std::size_t>(to - from)));
    MUST(0 <= result.lines[i] && result.lines[i] < result.line_count);
    MUST(i == 0 || result.lines[i - 1] < result.lines[i]);
  }
  for (std::size_t i = 0; i < result.slow.size(); i += 3) {
    MUST(0 <= result.slow[i] && result.slow[i] < documents);
    MUST(0 <= result.slow[i + 1] && result.slow[i + 1] <= result.slow[i + 2]);
    MUST(result.slow[i + 2] <= static_cast<std::int64_t>(size));
  }
}

// The documents of the lines, each extracted on its own.
std::string one_by_one(std::string_view block) {
  std::string text;
  for (std::size_t at = 0; at < block.size();) {
    const std::size_t found = block.find('\n', at);
    const std::size_t end = found == std::string_view::npos ? block.size() : found + 1;
    text += extract(block.substr(at, end - at), Level::kScalar).text;
    at = end;
  }
  return text;
}

}  // namespace
}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack;
  using namespace tokpack::test;
  const std::string_view block = as_text(data, size);
  const Extracted scalar = extract(block, Level::kScalar);
  check_spans(scalar, size);
  MUST(one_by_one(block) == scalar.text);
  for (const Level level : levels()) MUST(extract(block, level) == scalar);
  return 0;
}

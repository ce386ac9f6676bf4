// The splitter of JSON arrays: any cut gives the same lines, and no more bytes than came in.
#include <algorithm>

#include "core/json/json_array.hpp"
#include "fuzz.hpp"

namespace tokpack::test {
namespace {

struct Result {
  std::string lines;
  bool finished = false;
  std::uint64_t error = UINT64_MAX;
  bool operator==(const Result&) const = default;
};

Result feed(std::string_view text, std::size_t step) {
  JsonArray array;
  Result result;
  for (std::size_t at = 0; at < text.size(); at += step) {
    const Exact chunk(text.substr(at, step));
    Buffer<std::uint8_t> out;
    const auto error = array.feed(chunk.span(), out);
    MUST(out.size() <= chunk.span().size());
    if (error) {
      MUST(error->position <= text.size());
      result.error = error->position;
      result.lines.clear();  // what came before the error depends on the cuts
      return result;
    }
    result.lines.append(reinterpret_cast<const char*>(out.data()), out.size());
  }
  result.finished = array.finished();
  return result;
}

}  // namespace
}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack::test;
  const std::string_view text = as_text(data, size);
  const Result whole = feed(text, std::max<std::size_t>(size, 1));
  for (const std::size_t step : {1, 3, 64}) MUST(feed(text, step) == whole);
  return 0;
}

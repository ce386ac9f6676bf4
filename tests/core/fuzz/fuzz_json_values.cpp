// The splitter of JSON arrays: any cut gives the same lines, and no more bytes than came in.
#include <algorithm>
#include <vector>

#include "../json_results.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack::test;
  const std::string_view text = as_text(data, size);
  const SplitArray whole = split_array({text});
  MUST(whole.error == UINT64_MAX || whole.error <= size);
  for (const std::size_t step : {1, 3, 64}) {
    std::vector<std::string_view> chunks;
    for (std::size_t at = 0; at < size; at += step) chunks.push_back(text.substr(at, step));
    MUST(split_array(chunks) == whole);
  }
  return 0;
}

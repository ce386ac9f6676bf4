// The splitter of JSON values: any cut gives the same lines.
#include <algorithm>
#include <vector>

#include "../json_results.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack::test;
  const std::string_view text = as_text(data, size);
  for (const std::vector<std::string>& path : {std::vector<std::string>{}, {"a"}, {"a", "b"}}) {
    const SplitValues whole = split_values({text}, path);
    MUST(whole.error == UINT64_MAX || whole.error <= size);
    for (const std::size_t step : {1, 3, 64}) {
      std::vector<std::string_view> chunks;
      for (std::size_t at = 0; at < size; at += step) chunks.push_back(text.substr(at, step));
      MUST(split_values(chunks, path) == whole);
    }
  }
  return 0;
}

// All patterns: pretokens cover the text at borders of characters, and every level's scanner finds
// the same ones.
#include <vector>

#include "core/pretokenize/pretokenize.hpp"
#include "core/pretokenize/scan.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack;
  using namespace tokpack::test;
  const std::string text = repaired(data, size);
  const Exact copy(text);
  for (const std::string_view name : pattern_names()) {
    const Pattern pattern = pattern_by_name(name).value();
    const auto ends = reference_ends(pattern, copy.span());
    std::int64_t last = 0;
    for (const std::int64_t end : ends) {
      MUST(end > last && end <= static_cast<std::int64_t>(size));
      const auto at = static_cast<std::size_t>(end);
      MUST(at == size || (text[at] & 0xC0) != 0x80);
      last = end;
    }
    MUST(last == static_cast<std::int64_t>(size));
    for (const Level level : levels()) {
      const auto scanned = scan_ends(level, pattern, copy.span());
      MUST(!scanned || *scanned == ends);
    }
  }
  return 0;
}

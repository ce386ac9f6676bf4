// All patterns: pretokens cover the text at borders of characters, however few are asked for at
// once, and every level's own scanner sees the same ones.
#include <vector>

#include "core/pretokenize/pretokenize.hpp"
#include "core/pretokenize/scan.hpp"
#include "fuzz.hpp"

namespace tokpack::test {
namespace {

std::vector<std::int64_t> pretokens(Pattern pattern, std::span<const std::uint8_t> text,
                                    std::size_t capacity) {
  std::vector<std::int64_t> all;
  std::vector<std::uint32_t> ends(capacity);
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t base = pos;
    const std::size_t count =
        pretokenize_plain(pattern, text.data(), text.size(), &pos, ends.data(), capacity);
    MUST(count > 0 && count <= capacity);
    MUST(pos == base + ends[count - 1]);
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(static_cast<std::int64_t>(base + ends[i]));
    }
  }
  return all;
}

}  // namespace
}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack;
  using namespace tokpack::test;
  const std::string text = repaired(data, size);
  const Exact copy(text);
  for (const std::string_view name : pattern_names()) {
    const Pattern pattern = pattern_by_name(name).value();
    const auto ends = pretokens(pattern, copy.span(), size + 1);
    std::int64_t last = 0;
    for (const std::int64_t end : ends) {
      MUST(end > last && end <= static_cast<std::int64_t>(size));
      const auto at = static_cast<std::size_t>(end);
      MUST(at == size || (text[at] & 0xC0) != 0x80);
      last = end;
    }
    MUST(last == static_cast<std::int64_t>(size));
    MUST(pretokens(pattern, copy.span(), 1) == ends);
    MUST(pretokens(pattern, copy.span(), 3) == ends);
    for (const Level level : levels()) {
      const auto scanned = scan_ends(level, pattern, copy.span());
      MUST(!scanned || *scanned == ends);
    }
  }
  return 0;
}

// Expressions and patterns: what is understood cuts texts at borders of characters, and every
// level's scanner finds the same pretokens. Before the first line end of the input there may be an
// expression.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "core/pretokenize/pretokenize.hpp"
#include "fuzz.hpp"

namespace tokpack::test {
namespace {

void check(const Pretokenizer& pretokenizer, const Exact& copy) {
  const auto text = copy.span();
  const auto size = static_cast<std::int64_t>(text.size());
  const auto ends = pretoken_ends(pretokenizer, std::nullopt, text);
  std::int64_t last = 0;
  for (const std::int64_t end : ends) {
    MUST(end > last && end <= size);
    MUST(end == size || (text[static_cast<std::size_t>(end)] & 0xC0) != 0x80);
    last = end;
  }
  MUST(last == size);
  for (const Level level : levels()) MUST(pretoken_ends(pretokenizer, level, text) == ends);
}

}  // namespace
}  // namespace tokpack::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack;
  using namespace tokpack::test;
  static const std::vector<Pretokenizer> patterns = [] {
    std::vector<Pretokenizer> all;
    for (const std::string_view name : pattern_names()) all.emplace_back(name);
    return all;
  }();
  const std::string text = repaired(data, size);
  const Exact copy(text);
  for (const Pretokenizer& pattern : patterns) check(pattern, copy);
  const std::size_t line = std::min(text.find('\n'), text.size());
  const StepText steps[] = {{"Isolated", text.substr(0, line), false}, {"ByteLevel", "", false}};
  try {
    check(Pretokenizer(steps), Exact(text.substr(line)));
  } catch (const std::invalid_argument&) {
  }
  return 0;
}

// The splitter of JSON values and that of lines under a sanitizer: any cut gives the same lines.
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "core/text/split_lines.hpp"
#include "json_results.hpp"

namespace tokpack::test {
namespace {

void test_lines() {
  const SplitValues result = split_values({" [{\"a\": \"],[\\\"\"}\n,\n", "[1,[2]], \"x\" ]\n"});
  CHECK(result.finished);
  CHECK(result.lines == "{\"a\": \"],[\\\"\"} \n[1,[2]]\n\"x\" \n");
  const SplitValues several = split_values({"{}{\"a\":\n1},", "5 \"\"[1,2]"});
  CHECK(several.finished);
  CHECK(several.lines == "{}\n{\"a\": 1}\n5\n\"\"\n1\n2\n");
  const SplitValues under =
      split_values({"{\"b\": [\"a\"], \"a\": [1", "2, {}], \"c\": 0}"}, {"a"});
  CHECK(under.finished);
  CHECK(under.lines == "12\n{}\n");
}

void test_random_text_and_cuts() {
  std::mt19937 random(1);
  constexpr std::string_view kBytes = "[[[]],,::\"\"\"\"\\{{}} \n1aaaaaaaaaaaa";
  const std::vector<std::string> begins = {"[", "", "{\"a\":", "{\"a\":["};
  for (int round = 0; round < 40000; ++round) {
    std::string text = begins[random() % begins.size()];
    for (unsigned i = random() % 60; i > 0; --i) text += kBytes[random() % kBytes.size()];
    const std::size_t first = random() % (text.size() + 1);
    const std::size_t second = first + random() % (text.size() - first + 1);
    const std::string_view all = text;
    for (const std::vector<std::string>& path : {std::vector<std::string>{}, {"a"}, {"a", "aa"}}) {
      CHECK(
          split_values({all}, path) ==
          split_values(
              {all.substr(0, first), all.substr(first, second - first), all.substr(second)}, path));
    }
  }
}

void test_split_lines() {
  const auto spans = [](std::string_view text) {
    Buffer<std::int64_t> result;
    split_lines(Exact(text).span(), result);
    return std::vector<std::int64_t>(result.data(), result.data() + result.size());
  };
  CHECK(spans("").empty());
  CHECK((spans("\n") == std::vector<std::int64_t>{0, 0}));
  CHECK((spans("a\r\n\nbc") == std::vector<std::int64_t>{0, 2, 3, 3, 4, 6}));
  for (std::int64_t at = 1; at < 200; ++at) {
    const std::string line(static_cast<std::size_t>(at), 'x');
    CHECK((spans(line + "\n" + line) == std::vector<std::int64_t>{0, at, at + 1, 2 * at + 1}));
  }
}

}  // namespace
}  // namespace tokpack::test

int main() {
  tokpack::test::test_lines();
  tokpack::test::test_random_text_and_cuts();
  tokpack::test::test_split_lines();
  return tokpack::test::report();
}

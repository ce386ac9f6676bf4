// The extractor under a sanitizer: every cut and random damage of hard records, all levels alike.
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"
#include "json_results.hpp"

namespace tokpack::test {
namespace {

Extracted extract_at_all_levels(std::string_view block) {
  const Extracted scalar = extract(block, Level::kScalar);
  for (const Level level : levels()) CHECK(extract(block, level) == scalar);
  return scalar;
}

const std::vector<std::string>& hard_lines() {
  static const std::vector<std::string> lines = {
      R"({"text": "plain"})",
      R"({"a": [1, {"b": "]}\"\\"}, -0.5e+7, true], "text": "\n\t\"\\\/\b\f\r\u00e9\ud83d\ude00"})",
      R"({"text": ")" + std::string(200, 'x') + R"(\\\\\\\n", "z": null})",
      R"({"m": ")" + std::string(61, '\\') + std::string(61, '\\') + R"(", "text": ""})",
      "{\"text\": \"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" + std::string(70, 'y') + "\xc3\xa9\"}",
      R"({"text": ")" + std::string(58, '-') + R"(\u4e2d\u6587\ud83d\ude00\u0041"} )" + "\r",
      R"({"text": 1})",
      " \t\r",
      "",
  };
  return lines;
}

void test_values() {
  const Extracted result = extract_at_all_levels(
      "{\"text\": \"a\\n\"}\n\n{\"text\": 1}\n{\"x\": [], \"text\": \"\\ud83d\\ude00\"}");
  CHECK(result.text == "a\n\xf0\x9f\x98\x80");
  CHECK((result.spans == std::vector<std::int64_t>{0, 2, 2, 2, 2, 6}));
  CHECK((result.lines == std::vector<std::int64_t>{0, 2, 3}));
  CHECK((result.slow == std::vector<std::int64_t>{1, 17, 28}));
  CHECK(result.line_count == 4);
}

void test_every_cut() {
  for (const std::string& line : hard_lines()) {
    const std::string block = "{\"text\": \"before\"}\n" + line;
    for (std::size_t cut = 0; cut <= block.size(); ++cut) {
      extract_at_all_levels(std::string_view(block).substr(0, cut));
    }
  }
}

void test_damage() {
  std::mt19937 random(1);
  constexpr std::string_view kBytes("\"\\{}[]:,u0n1-.e\n\r \x00\x1f\x80\xc3\xe2\xf0", 23);
  for (int round = 0; round < 3000; ++round) {
    std::string block;
    for (int i = 0; i < 3; ++i) block += hard_lines()[random() % hard_lines().size()] + "\n";
    for (unsigned i = random() % 4; i > 0; --i) {
      const std::size_t at = random() % block.size();
      const char byte = kBytes[random() % kBytes.size()];
      if (random() % 2 == 0) {
        block[at] = byte;
      } else {
        block.insert(at, 1 + random() % 3, byte);
      }
    }
    block.resize(random() % (block.size() + 1));
    extract_at_all_levels(block);
  }
}

void test_depth_is_bounded() {
  const auto nested = [](std::size_t depth) {
    return "{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + ", \"text\": \"t\"}";
  };
  CHECK(extract_at_all_levels(nested(60)).slow.empty());
  CHECK(!extract_at_all_levels(nested(100000)).slow.empty());
}

}  // namespace
}  // namespace tokpack::test

int main() {
  tokpack::test::test_values();
  tokpack::test::test_every_cut();
  tokpack::test::test_damage();
  tokpack::test::test_depth_is_bounded();
  return tokpack::test::report();
}

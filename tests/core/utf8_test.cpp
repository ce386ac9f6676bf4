// UTF-8 validation under a sanitizer: all levels against each other, at the end of an allocation.
#include "core/text/utf8.hpp"

#include <random>
#include <string>

#include "check.hpp"
#include "memory.hpp"

namespace tokpack::test {
namespace {

bool valid(std::string_view bytes) {
  const Exact input(bytes);
  const bool expected = utf8_check(Level::kScalar)(input.span().data(), bytes.size());
  for (const Level level : levels()) {
    CHECK(utf8_check(level)(input.span().data(), bytes.size()) == expected);
  }
  return expected;
}

void test_every_place() {
  for (std::size_t size = 0; size < 140; ++size) {
    const std::string before(size, 'x');
    CHECK(valid(before));
    for (const char* good : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
      const std::string text = before + good;
      CHECK(valid(text));
      CHECK(valid(text + before));
      CHECK(!valid(text.substr(0, text.size() - 1)));
      CHECK(!valid(text.substr(0, text.size() - 1) + before + "y"));
      CHECK(!valid(before + std::string(good).substr(1)));
    }
    for (const char* bad : {"\xc0\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                            "\xf4\x90\x80\x80", "\xff", "\xf8\x80\x80\x80\x80"}) {
      CHECK(!valid(before + bad));
      CHECK(!valid(before + bad + before));
    }
  }
}

void test_noise() {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (unsigned i = random() % 60; i > 0; --i) {
      text += random() % 8 == 0 ? std::string(1, static_cast<char>(random()))
                                : std::string(random() % 2 == 0 ? "\xe2\x82\xac" : "a");
    }
    valid(text);
  }
}

}  // namespace
}  // namespace tokpack::test

int main() {
  tokpack::test::test_every_place();
  tokpack::test::test_noise();
  return tokpack::test::report();
}

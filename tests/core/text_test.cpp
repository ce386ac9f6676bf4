// Pretokenizers and NFC on random texts in buffers of the exact size, for the sanitizers.
// That the results are right is tested from Python, against the Hugging Face library.
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"
#include "core/pretokenize/pretokenize.hpp"
#include "core/text/normal_forms.hpp"
#include "core/text/unicode.hpp"
#include "memory.hpp"

namespace tokpack::test {
namespace {

constexpr std::string_view kAtoms[] = {
    "a",      "B",      "word",   "WORD",   " ",      "  ",     "\n",     "\r\n",   "\t",
    "'",      "'s",     "'LL",    "'r",     "1",      "1234",   "!",      "...",    "/",
    "\u00e9", "\u00a0", "\u0301", "\u0323", "\u0345", "\u0378", "\u017f", "\u200b", "\u3000",
    "\u4e2d", "\u30a2", "\u30fb", "\u212b", "\u1100", "\u1161", "\u11a8", "\uac00", "\U0001f600",
};

std::string random_text(std::mt19937& random, std::size_t atoms) {
  std::string text;
  for (std::size_t i = 0; i < atoms; ++i) {
    text.append(kAtoms[random() % std::size(kAtoms)]);
  }
  return text;
}

void check_pattern(const Pretokenizer& pattern, std::string_view text) {
  std::int64_t last = 0;
  for (const std::int64_t end : pretoken_ends(pattern, std::nullopt, Exact(text).span())) {
    CHECK(end > last && end <= std::ssize(text));
    CHECK(end == std::ssize(text) || (text[static_cast<std::size_t>(end)] & 0xC0) != 0x80);
    last = end;
  }
  CHECK(last == std::ssize(text));
}

void test_pretokenizers() {
  std::mt19937 random(1);
  for (const std::string_view name : pattern_names()) {
    const Pretokenizer pattern(name);
    for (std::size_t round = 0; round < 300; ++round) {
      check_pattern(pattern, random_text(random, round % 50));
    }
  }
  CHECK(!texts_of_pattern("gpt3"));
  CHECK((pretoken_ends(Pretokenizer("gpt2"), std::nullopt, Exact("it's  12 ok").span()) ==
         std::vector<std::int64_t>{2, 4, 5, 8, 11}));
}

void test_classes() {
  std::size_t letters = 0, numbers = 0, spaces = 0;
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    letters += (char_class(c) & kLetter) != 0;
    numbers += (char_class(c) & kNumber) != 0;
    spaces += (char_class(c) & kSpace) != 0;
  }
  CHECK(letters == 141028);
  CHECK(numbers == 1911);
  CHECK(spaces == 25);
}

bool is_nfc_quick(std::string_view text) { return is_normal_quick(NormalForm::kNfc, text); }

std::string normalized(std::string_view text) {
  const Exact copy(text);
  const std::string_view view(reinterpret_cast<const char*>(copy.span().data()), text.size());
  std::string out = "what was here";
  normalize(NormalForm::kNfc, view, out);
  CHECK(!is_nfc_quick(view) || out == text);
  return out;
}

void test_nfc() {
  std::mt19937 random(2);
  for (std::size_t round = 0; round < 2000; ++round) {
    const std::string text = random_text(random, round % 60);
    const std::string once = normalized(text);
    CHECK(normalized(once) == once);
  }
  CHECK(normalized("e\u0301") == "\u00e9");
  CHECK(is_nfc_quick("plain \u00e9 \u4e2d"));
  CHECK(is_nfc_quick("a\u0334\u035c a\u0334 \u035c\u4e2d\u0334"));
  CHECK(!is_nfc_quick("a\u035c\u0334"));
  CHECK(!is_nfc_quick("e\u0301"));
}

}  // namespace
}  // namespace tokpack::test

int main() {
  tokpack::test::test_classes();
  tokpack::test::test_pretokenizers();
  tokpack::test::test_nfc();
  return tokpack::test::report();
}

// The GPT-2 family of pretokenizers, and the choice among all of them.
#include "core/pretokenize/pretokenize.hpp"

#include <algorithm>
#include <array>

#include "core/pretokenize/matching.hpp"

namespace tokpack {
namespace {

using namespace matching;

struct Name {
  std::string_view name;
  Pattern pattern;
};

constexpr std::array kNames = {
    Name{"gpt2", Pattern::kGpt2},
    Name{"digits_gpt2", Pattern::kDigitsGpt2},
    Name{"none", Pattern::kNone},
    Name{"llama3", Pattern::kLlama3},
    Name{"qwen2", Pattern::kQwen2},
    Name{"qwen35", Pattern::kQwen35},
    Name{"o200k", Pattern::kO200k},
    Name{"tekken", Pattern::kTekken},
    Name{"deepseek_v3", Pattern::kDeepseekV3},
};

bool is_digit(Text text, std::size_t pos) {
  const std::uint8_t byte = text.data[pos];
  if (byte < 0x80) return (ascii_class(byte) & kNumber) != 0;
  const std::uint32_t c = decode_utf8(text.data + pos).value;
  return (char_class(c) & kNumber) != 0 || is_new_number(c);
}

// Classes for the text between digits: a digit ends the segment that the pattern is applied to.
struct BetweenDigits {
  static constexpr bool kHasAscii = true;
  static std::uint32_t ascii(std::uint8_t byte) {
    const std::uint32_t bits = ascii_class(byte);
    return bits & kNumber ? kEnd : bits;
  }
  static std::uint32_t of(std::uint32_t c) {
    const std::uint32_t bits = char_class(c);
    return (bits & kNumber) || is_new_number(c) ? kEnd : bits;
  }
};

template <class Classes>
std::size_t next_gpt2(Text text, std::size_t pos) {
  const std::uint8_t byte = text.data[pos];
  if (byte == '\'') {
    if (const std::size_t size = contraction(text, pos)) return pos + size;
  }
  std::size_t begin = pos;
  Char c = char_at<Classes>(text, pos);
  if (byte == ' ') {
    const Char second = char_at<Classes>(text, pos + 1);
    if (!(second.bits & (kSpace | kEnd))) {
      begin = pos + 1;
      c = second;
    }
  }
  const std::size_t after = begin + c.size;
  if (c.bits & kLetter) return skip_any<Classes, kLetter>(text, after);
  if (c.bits & kNumber) return skip_any<Classes, kNumber>(text, after);
  if (c.bits & kSpace) return spaces<Classes>(text, pos);
  return skip_none<Classes, kLetter | kNumber | kSpace>(text, after);
}

std::size_t next_digits_gpt2(Text text, std::size_t pos) {
  if (is_digit(text, pos)) return pos + decode_utf8(text.data + pos).size;
  return next_gpt2<BetweenDigits>(text, pos);
}

std::size_t next_none(Text text, std::size_t) { return text.size; }

}  // namespace

std::optional<Pattern> pattern_by_name(std::string_view name) {
  const auto* found = std::find_if(kNames.begin(), kNames.end(),
                                   [name](const Name& one) { return one.name == name; });
  if (found == kNames.end()) return std::nullopt;
  return found->pattern;
}

const std::vector<std::string_view>& pattern_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Name& one : kNames) all.push_back(one.name);
    return all;
  }();
  return names;
}

std::size_t pretokenize_plain(Pattern pattern, const std::uint8_t* data, std::size_t size,
                              std::size_t* pos, std::uint32_t* ends, std::size_t capacity) {
  const Text text{data, size};
  switch (pattern) {
    case Pattern::kGpt2:
      return cut(text, pos, ends, capacity, next_gpt2<PlainClasses>);
    case Pattern::kDigitsGpt2:
      return cut(text, pos, ends, capacity, next_digits_gpt2);
    case Pattern::kNone:
      return cut(text, pos, ends, capacity, next_none);
    case Pattern::kLlama3:
      return cut_llama3(text, pos, ends, capacity);
    case Pattern::kQwen2:
      return cut_qwen2(text, pos, ends, capacity);
    case Pattern::kQwen35:
      return cut_qwen35(text, pos, ends, capacity);
    case Pattern::kO200k:
      return cut_o200k(text, pos, ends, capacity);
    case Pattern::kTekken:
      return cut_tekken(text, pos, ends, capacity);
    case Pattern::kDeepseekV3:
      return cut_deepseek_v3(text, pos, ends, capacity);
  }
  return 0;
}

}  // namespace tokpack

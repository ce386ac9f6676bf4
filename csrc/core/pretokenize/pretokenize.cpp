// The reference pretokenizers of the GPT-2 family, and the choice among all of them.
#include "core/pretokenize/pretokenize.hpp"

#include <algorithm>

#include "core/pretokenize/matching.hpp"

namespace tokpack {
namespace {

using namespace matching;

bool is_digit(Text text, std::size_t pos) {
  const std::uint8_t byte = text.data[pos];
  if (byte < 0x80) return (ascii_class(byte) & kNumber) != 0;
  const std::uint32_t c = decode_utf8(text.data + pos).value;
  return (char_class(c) & kNumber) != 0 || is_new_number(c);
}

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
  if (c.bits & kSpace) return spaces<Classes, false>(text, pos);
  return skip_none<Classes, kLetter | kNumber | kSpace>(text, after);
}

std::size_t next_digits_gpt2(Text text, std::size_t pos) {
  if (is_digit(text, pos)) return pos + decode_utf8(text.data + pos).size;
  return next_gpt2<ClassesBetweenNumbers<is_new_number>>(text, pos);
}

std::size_t next_none(Text text, std::size_t) { return text.size; }

struct Reference {
  std::string_view name;
  Pattern pattern;
  NextPretoken* next;
};

constexpr Reference kReferences[] = {
    {"gpt2", Pattern::kGpt2, next_gpt2<PlainClasses>},
    {"digits_gpt2", Pattern::kDigitsGpt2, next_digits_gpt2},
    {"none", Pattern::kNone, next_none},
    {"llama3", Pattern::kLlama3, next_llama3},
    {"qwen2", Pattern::kQwen2, next_qwen2},
    {"qwen35", Pattern::kQwen35, next_qwen35},
    {"o200k", Pattern::kO200k, next_o200k},
    {"tekken", Pattern::kTekken, next_tekken},
    {"deepseek_v3", Pattern::kDeepseekV3, next_deepseek_v3},
};

}  // namespace

std::optional<Pattern> pattern_by_name(std::string_view name) {
  for (const Reference& one : kReferences) {
    if (one.name == name) return one.pattern;
  }
  return std::nullopt;
}

std::vector<std::string_view> pattern_names() {
  std::vector<std::string_view> names;
  for (const Reference& one : kReferences) names.push_back(one.name);
  return names;
}

std::vector<std::int64_t> reference_ends(Pattern pattern, std::span<const std::uint8_t> text) {
  const Text all{text.data(), text.size()};
  const Reference& one = *std::ranges::find(kReferences, pattern, &Reference::pattern);
  std::vector<std::int64_t> ends;
  for (std::size_t pos = 0; pos < text.size();) {
    pos = one.next(all, pos);
    ends.push_back(static_cast<std::int64_t>(pos));
  }
  return ends;
}

}  // namespace tokpack

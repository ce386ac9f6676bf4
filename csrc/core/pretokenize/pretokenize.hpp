// Pretokenization: cut one document into the pieces that BPE encodes independently.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tokpack {

// The split patterns that the core knows. Each stands for a family of tokenizer.json files; the
// ByteLevel of each has add_prefix_space=false, each Split has behavior Isolated and invert=false.
enum class Pattern : std::uint8_t {
  // ByteLevel(use_regex=true), which splits by
  // '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // Sequence[Digits(individual_digits=true), ByteLevel(use_regex=true)]: StarCoder, SmolLM
  kDigitsGpt2,
  // ByteLevel(use_regex=false): a segment is one piece
  kNone,

  // The rest are a Sequence of Splits and ByteLevel(use_regex=false).
  // Llama 3, GLM 4, OLMo 2, and cl100k as a tokenizer.json:
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
  //   |\s*[\r\n]+|\s+(?!\S)|\s+
  // The same: '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}
  //   | ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+
  // Not the same: \p{N}{1,3}+, which Oniguruma reads as any number of threes; \s++$.
  kLlama3,
  // Qwen 2, 2.5, 3: kLlama3 with \p{N} for \p{N}{1,3}
  kQwen2,
  // Qwen 3.5: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}
  //   | ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kQwen35,
  // gpt-oss, Llama 4, MiniMax M2, with U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}],
  // L = [\p{Ll}\p{Lm}\p{Lo}\p{M}], C = (?i:'s|'t|'re|'ve|'m|'ll|'d):
  // [^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*
  //   |\s*[\r\n]+|\s+(?!\S)|\s+
  kO200k,
  // Mistral's Tekken: kO200k without C, with \p{N} for \p{N}{1,3}
  kTekken,
  // DeepSeek V3, R1: three Splits, where \r and \n may be the characters themselves,
  // \p{N}{1,3}
  // [\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+ (written as these characters)
  // [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
  //   | ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kDeepseekV3,
};

// The names of the patterns, such as "llama3", and the pattern of a name, or nothing.
std::vector<std::string_view> pattern_names();
std::optional<Pattern> pattern_by_name(std::string_view name);

// The end of each pretoken of one document, in bytes, found one character after the other: what
// the scanners of scan.hpp are tested against. REQUIRES: the text is valid UTF-8.
std::vector<std::int64_t> reference_ends(Pattern pattern, std::span<const std::uint8_t> text);

}  // namespace tokpack

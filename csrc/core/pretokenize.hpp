// Pretokenization: cut one document into the pieces that BPE encodes independently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tokpack {

// The split patterns that the core knows. Each stands for a family of tokenizer.json files; the
// ByteLevel of each has add_prefix_space=false, each Split has behavior Isolated and invert=false.
enum class Pattern : std::uint8_t {
  // ByteLevel(use_regex=true), which splits by
  // '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // Sequence[Digits(individual_digits=true), ByteLevel(use_regex=true)]: StarCoder, SmolLM, Command
  // R
  kDigitsGpt2,
  // ByteLevel(use_regex=false): a segment is one piece
  kNone,
};

std::optional<Pattern> pattern_by_name(std::string_view name);
const std::vector<std::string_view>& pattern_names();

// Scalar pretokenizer: continues at text[*pos], which must be a pretoken boundary, and writes the
// end offsets (relative to text + the *pos at entry) of at most `capacity` pretokens. Returns how
// many, and advances *pos to the last end. REQUIRES: text[0, size) is valid UTF-8, size < 2^31.
std::size_t pretokenize_scalar(Pattern pattern, const std::uint8_t* text, std::size_t size,
                               std::size_t* pos, std::uint32_t* ends, std::size_t capacity);

}  // namespace tokpack

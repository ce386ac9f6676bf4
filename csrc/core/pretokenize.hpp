// Pretokenization: cut one document into the pieces that BPE encodes independently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tokpack {

// The split patterns that the core knows. Each stands for a family of tokenizer.json files.
enum class Pattern : std::uint8_t;

std::optional<Pattern> pattern_by_name(std::string_view name);
const std::vector<std::string_view>& pattern_names();

// Scalar pretokenizer: continues at text[*pos], which must be a pretoken boundary, and writes the end
// offsets (relative to text + the *pos at entry) of at most `capacity` pretokens. Returns how many, and
// advances *pos to the last end. REQUIRES: text[0, size) is valid UTF-8, size < 2^31.
std::size_t pretokenize_scalar(Pattern pattern, const std::uint8_t* text, std::size_t size,
                               std::size_t* pos, std::uint32_t* ends, std::size_t capacity);

}  // namespace tokpack

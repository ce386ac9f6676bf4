// What a training step reads besides the tokens of a sample: masks, positions, document boundaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/samples/gather_tokens.hpp"

namespace tokpack {

// How samples of `length` input tokens are made; their text has one token more, the last label.
struct SampleRules {
  std::size_t length;
  bool extra;       // the last row ends with a token that is only a label, not an input
  bool joined;      // the rows are one running text; otherwise each is a document of its own
  bool boundaries;  // edges and longest are written: documents begin where rows do
  std::optional<std::int64_t> mask_eod;  // no loss where the input is this token
  std::optional<std::int64_t> reset_at;  // positions begin anew behind this token
  std::optional<std::int64_t> cut_at;    // documents begin behind this token, not where rows do
  std::int64_t multiple = 1;  // rows begin at multiples of it; what lies between is padding
};

// Where the arrays of one sample are written. The last two only with `boundaries`.
struct SampleArrays {
  float* loss_mask;         // [length]: 1 where the label counts
  std::int64_t* positions;  // [length]
  std::int32_t* edges;      // [length + 1]: where documents begin, then length to the end
  std::int32_t* longest;    // tokens of the longest document
};

// Writes the arrays of one sample. text: length + 1 tokens, of which `rows` gave the first ones and
// the rest is padding. REQUIRES: the rows' counts are not negative, and add up to no more.
void assemble(const SampleRules& rules, std::span<const Row> rows, const std::int64_t* text,
              const SampleArrays& out);

}  // namespace tokpack

#include "core/bpe/token_offsets.hpp"

namespace tokpack {

void mark_tokens(std::span<const TokenOffset> offsets, std::span<const std::int32_t> lengths,
                 std::span<const TokenOffset> spans, std::span<const std::int64_t> counts,
                 std::uint8_t* mask) {
  std::size_t token = 0, span = 0;
  for (std::size_t document = 0; document < lengths.size(); ++document) {
    const std::size_t last = token + static_cast<std::size_t>(lengths[document]);
    const std::size_t behind = span + static_cast<std::size_t>(counts[document]);
    for (; token < last; ++token) {
      const TokenOffset& at = offsets[token];
      while (span < behind && spans[span].end <= at.begin) ++span;
      mask[token] = span < behind && at.begin < at.end && spans[span].begin < at.end ? 1 : 0;
    }
    span = behind;
  }
}

}  // namespace tokpack

#include "core/samples/sample_arrays.hpp"

#include <algorithm>
#include <numeric>

namespace tokpack {
namespace {

// Where a row begins whose predecessor ends at `end`.
std::size_t next_begin(const SampleRules& rules, std::size_t end) {
  return static_cast<std::size_t>(round_up(static_cast<std::int64_t>(end), rules.multiple));
}

void write_loss_mask(const SampleRules& rules, std::span<const Row> rows, const std::int64_t* text,
                     std::size_t filled, float* out) {
  // The last token has no label, nor has padding.
  const std::size_t labels = filled > 0 ? filled - 1 : 0;
  std::fill_n(out, labels, 1.0F);
  std::fill(out + labels, out + rules.length, 0.0F);
  if (!rules.joined) {
    std::size_t end = 0;
    for (const Row& row : rows) {
      const std::size_t begin = next_begin(rules, end);
      // The last label of a row would be the first token of the next; padding has none either.
      if (end > 0) std::fill(out + end - 1, out + std::min(begin, rules.length), 0.0F);
      end = begin + static_cast<std::size_t>(row.count);
    }
    if (end > 0 && end <= rules.length) out[end - 1] = 0.0F;
  }
  if (rules.mask_eod) {
    const std::int64_t eod = *rules.mask_eod;
    for (std::size_t i = 0; i < labels; ++i) out[i] = text[i] == eod ? 0.0F : out[i];
  }
}

void count_from_zero(std::int64_t* begin, std::int64_t* end) {
  std::iota(begin, end, std::int64_t{0});
}

// Writes edges, longest and positions of documents that begin where rows do. Padding behind all
// belongs to the last document, or is one more behind separate documents. A row whose only token is
// the last label begins no document.
void begin_documents_at_rows(const SampleRules& rules, std::span<const Row> rows,
                             std::size_t filled, const SampleArrays& out) {
  const std::size_t label = rules.joined && rules.extra && filled > 0 ? 1 : 0;
  const std::size_t inputs = std::min(filled - label, rules.length);
  std::size_t written = 0, begin = 0, longest = 0, start = 0;
  const auto close = [&](std::size_t end) {
    out.edges[written++] = static_cast<std::int32_t>(begin);
    count_from_zero(out.positions + begin, out.positions + end);
    longest = std::max(longest, end - begin);
    begin = end;
  };
  for (const Row& row : rows) {
    start = next_begin(rules, start);
    if (row.count > 0 && start > 0 && start < inputs) close(start);
    start += static_cast<std::size_t>(row.count);
  }
  const std::size_t rest = next_begin(rules, filled);
  if (!rules.joined && filled > 0 && rest < rules.length) close(rest);
  close(rules.length);
  std::fill(out.edges + written, out.edges + rules.length + 1,
            static_cast<std::int32_t>(rules.length));
  *out.longest = static_cast<std::int32_t>(longest);
}

void restart_positions(std::int64_t eod, const std::int64_t* text, std::size_t inputs,
                       std::span<std::int64_t> out) {
  std::int64_t* begin = out.data();
  for (std::size_t i = 0; i + 1 < out.size() && i < inputs; ++i) {
    if (text[i] != eod) continue;
    count_from_zero(begin, out.data() + i + 1);
    begin = out.data() + i + 1;
  }
  count_from_zero(begin, out.data() + out.size());
}

// Writes edges and longest of documents that end with the token `eod`.
void end_documents_at(std::int64_t eod, const std::int64_t* text, std::size_t inputs,
                      std::size_t length, const SampleArrays& out) {
  std::size_t written = 0, begin = 0, longest = 0;
  const auto close = [&](std::size_t end) {
    out.edges[written++] = static_cast<std::int32_t>(begin);
    longest = std::max(longest, end - begin);
    begin = end;
  };
  for (std::size_t i = 0; i + 1 < length && i < inputs; ++i) {
    if (text[i] == eod) close(i + 1);
  }
  close(length);
  std::fill(out.edges + written, out.edges + length + 1, static_cast<std::int32_t>(length));
  *out.longest = static_cast<std::int32_t>(longest);
}

}  // namespace

void assemble(const SampleRules& rules, std::span<const Row> rows, const std::int64_t* text,
              const SampleArrays& out) {
  std::size_t filled = 0;
  for (const Row& row : rows) {
    filled = next_begin(rules, filled) + static_cast<std::size_t>(row.count);
  }
  write_loss_mask(rules, rows, text, filled, out.loss_mask);
  if (rules.boundaries && rules.cut_at)
    end_documents_at(*rules.cut_at, text, filled, rules.length, out);
  if (rules.boundaries && !rules.cut_at) {
    begin_documents_at_rows(rules, rows, filled, out);
  } else if (rules.reset_at) {
    restart_positions(*rules.reset_at, text, filled, {out.positions, rules.length});
  } else {
    count_from_zero(out.positions, out.positions + rules.length);
  }
}

}  // namespace tokpack

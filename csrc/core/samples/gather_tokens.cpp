#include "core/samples/gather_tokens.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>
#include <string>

#include "core/base/load.hpp"
#include "core/base/prefetch.hpp"

namespace tokpack {
namespace {

// A row's index entry is prefetched this many rows ahead, its tokens, whose address is in the
// entry, half as many.
constexpr std::size_t kAhead = 8;
constexpr std::size_t kLine = 64;
constexpr std::size_t kFirstLines = 8;  // prefetched of a row; the hardware prefetches the rest

std::size_t item_bytes(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  throw std::invalid_argument("unknown type of tokens");
}

unsigned shift_of(std::size_t token_bytes) {
  if (!std::has_single_bit(token_bytes) || token_bytes > 8) {
    throw std::invalid_argument("tokens of " + std::to_string(token_bytes) + " bytes");
  }
  return static_cast<unsigned>(std::countr_zero(token_bytes));
}

std::string number(std::int64_t value) { return std::to_string(value); }

}  // namespace

void lay_out(std::span<const Row> rows, const Layout& layout, std::span<std::int64_t> targets,
             std::span<std::int64_t> out) {
  const std::int64_t width = layout.width;
  if (layout.multiple < 1 || layout.multiple > width || targets.size() != rows.size() ||
      layout.counts.size() != layout.places.size()) {
    throw std::invalid_argument("arrays of samples that do not belong together");
  }
  const auto lines = static_cast<std::int64_t>(out.size()) / width;
  std::size_t row = 0;
  for (std::size_t b = 0; b < layout.counts.size(); ++b) {
    const std::int64_t count = layout.counts[b], place = layout.places[b];
    if (place < 0 || place >= lines) {
      throw std::invalid_argument("place " + number(place) + " of " + number(lines));
    }
    if (count < 0 || static_cast<std::uint64_t>(count) > rows.size() - row) {
      throw std::invalid_argument(number(count) + " rows of a sample, but " +
                                  std::to_string(rows.size() - row) + " are left");
    }
    const auto line = out.subspan(static_cast<std::size_t>(place * width));
    std::int64_t filled = 0;
    for (const std::size_t end = row + static_cast<std::size_t>(count); row < end; ++row) {
      const std::int64_t tokens = rows[row].count;
      const std::int64_t gap = std::min(round_up(filled, layout.multiple), width) - filled;
      std::fill_n(line.begin() + filled, gap, 0);
      filled += gap;
      if (tokens < 0 || tokens > width - filled) {
        throw std::invalid_argument("a row of " + number(tokens) + " tokens where " +
                                    number(width - filled) + " fit");
      }
      targets[row] = place * width + filled;
      filled += tokens;
    }
    std::fill_n(line.begin() + filled, width - filled, 0);
  }
  if (row != rows.size()) throw std::invalid_argument("rows of no sample");
}

TokenFile::TokenFile(std::span<const unsigned char> values, TokenType type,
                     const unsigned char* lengths, const unsigned char* pointers, std::size_t n,
                     Level level, ViewNumbers view, std::size_t token_bytes)
    : values_(values),
      item_bytes_(item_bytes(type)),
      token_shift_(shift_of(token_bytes == 0 ? item_bytes_ : token_bytes)),
      widen_(widen_tokens(type, level)),
      lengths_(lengths),
      pointers_(pointers),
      count_(n),
      view_(view) {}

std::size_t TokenFile::gather(std::span<const Row> rows, std::span<const std::int64_t> targets,
                              std::span<std::int64_t> out) const {
  const std::size_t total = std::min(rows.size(), targets.size());
  std::array<const unsigned char*, kAhead> sources;  // of rows that are found and not yet copied
  std::size_t found = 0, good = total;
  const auto room = static_cast<std::int64_t>(out.size());
  for (std::size_t r = 0; r < std::min(2 * kAhead, total); ++r) prefetch_number(rows[r]);
  for (std::size_t r = 0; r < std::min(kAhead, total); ++r) prefetch_entry(rows[r]);
  for (std::size_t r = 0; r < good; ++r) {
    if (r + 2 * kAhead < total) prefetch_number(rows[r + 2 * kAhead]);
    if (r + kAhead < total) prefetch_entry(rows[r + kAhead]);
    for (; found < std::min(good, r + kAhead / 2); ++found) {
      const unsigned char* source = find(rows[found]);
      const std::int64_t target = targets[found], tokens = rows[found].count;
      if (source == nullptr || target < 0 || target > room || tokens > room - target) {
        good = found;
        break;
      }
      prefetch_tokens(source, tokens);
      sources[found % kAhead] = source;
    }
    if (r < good) {
      widen_(sources[r % kAhead], out.data() + targets[r], static_cast<std::size_t>(rows[r].count));
    }
  }
  return good;
}

const unsigned char* TokenFile::find(const Row& row) const {
  const std::uint64_t sequence = sequence_of(row);
  if (sequence >= count_) return nullptr;
  const std::int64_t length = load<std::int32_t>(lengths_ + 4 * sequence);
  const auto begin = load<std::int64_t>(pointers_ + 8 * sequence);
  const auto size = static_cast<std::int64_t>(values_.size() / item_bytes_ << token_shift_);
  const std::int64_t item = std::int64_t{1} << token_shift_;
  const std::int64_t end =
      sequence + 1 < count_ ? load<std::int64_t>(pointers_ + 8 * (sequence + 1)) : size;
  // 0 <= begin <= end <= size, so that end - begin is right; a length has 31 bits.
  if (length < 0 || begin < 0 || begin > end || end > size || (begin & (item - 1)) != 0 ||
      end - begin != length * item) {
    return nullptr;
  }
  if (row.first < 0 || row.first > length || row.count < 0 || row.count > length - row.first) {
    return nullptr;
  }
  const std::int64_t first = (begin >> token_shift_) + row.first;
  return values_.data() + static_cast<std::size_t>(first) * item_bytes_;
}

std::uint64_t TokenFile::sequence_of(const Row& row) const {
  const auto sequence = static_cast<std::uint64_t>(row.sequence);  // a negative one is too large
  if (view_.numbers == nullptr) return sequence;
  if (sequence >= view_.count) return count_;
  const unsigned char* number = view_.numbers + view_.bytes * sequence;
  return view_.bytes == 4 ? load<std::uint32_t>(number) : load<std::uint64_t>(number);
}

void TokenFile::prefetch_number(const Row& row) const {
  const auto sequence = static_cast<std::uint64_t>(row.sequence);
  if (sequence < view_.count) prefetch(view_.numbers + view_.bytes * sequence);
}

void TokenFile::prefetch_entry(const Row& row) const {
  const std::uint64_t sequence = sequence_of(row);
  if (sequence >= count_) return;
  prefetch(lengths_ + 4 * sequence);
  prefetch(pointers_ + 8 * sequence);
  prefetch(pointers_ + 8 * sequence + 8);  // of the next one; behind the last it is not read
}

void TokenFile::prefetch_tokens(const unsigned char* begin, std::int64_t count) const {
  const std::size_t bytes =
      std::min(static_cast<std::size_t>(count) * item_bytes_, kFirstLines * kLine);
  for (std::size_t at = 0; at < bytes; at += kLine) prefetch(begin + at);
}

}  // namespace tokpack

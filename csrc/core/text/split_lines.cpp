#include "core/text/split_lines.hpp"

#include <bit>
#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include "core/text/split_lines_sse2.hpp"
#elif defined(__AARCH64EL__)
#include "core/text/split_lines_neon.hpp"
#endif

namespace tokpack {
namespace {

constexpr std::size_t kStep = 64;

#if defined(__SSE2__)
constexpr auto newlines = newlines_sse2;
#elif defined(__AARCH64EL__)
constexpr auto newlines = newlines_neon;
#else
// One bit for each \n of 64 bytes.
std::uint64_t newlines(const std::uint8_t* bytes) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < kStep; ++i) mask |= std::uint64_t{bytes[i] == '\n'} << i;
  return mask;
}
#endif

}  // namespace

void split_lines(std::span<const std::uint8_t> block, Buffer<std::int64_t>& spans) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < block.size(); at += kStep) {
    std::uint64_t mask;
    if (block.size() - at >= kStep) {
      mask = newlines(block.data() + at);
    } else {
      std::uint8_t tail[kStep] = {};
      std::memcpy(tail, block.data() + at, block.size() - at);
      mask = newlines(tail);
    }
    // Room for as many lines as 64 bytes can have, so that the loop over them needs no check.
    spans.reserve(spans.size() + 2 * kStep);
    std::int64_t* out = spans.data() + spans.size();
    for (; mask != 0; mask &= mask - 1) {
      const std::size_t end = at + static_cast<std::size_t>(std::countr_zero(mask));
      *out++ = static_cast<std::int64_t>(begin);
      *out++ = static_cast<std::int64_t>(end);
      begin = end + 1;
    }
    spans.resize(static_cast<std::size_t>(out - spans.data()));
  }
  if (begin < block.size()) {
    spans.push_back(static_cast<std::int64_t>(begin));
    spans.push_back(static_cast<std::int64_t>(block.size()));
  }
}

}  // namespace tokpack

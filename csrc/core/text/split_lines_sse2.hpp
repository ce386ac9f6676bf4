// Finding line ends with SSE2, which every x86-64 processor has: the compiler knows whether to use
// it, and there is no choice at run time.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>

namespace tokpack {

// One bit for each \n of 64 bytes.
inline std::uint64_t newlines_sse2(const std::uint8_t* bytes) {
  std::uint64_t mask = 0;
  const __m128i newline = _mm_set1_epi8('\n');
  for (std::size_t i = 0; i < 64; i += 16) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
    const auto found = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(part, newline)));
    mask |= std::uint64_t{found} << i;
  }
  return mask;
}

}  // namespace tokpack

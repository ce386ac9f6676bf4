#include "core/text/utf8.hpp"

#include <cstring>

namespace tokpack {
namespace {

constexpr std::uint64_t kHighBits = 0x8080808080808080;

bool is_continuation(std::uint8_t byte) { return (byte & 0xc0) == 0x80; }

// Size of the well-formed character at p, 0 when there is none. REQUIRES: left > 0, p[0] >= 0x80.
std::size_t multibyte_size(const std::uint8_t* p, std::size_t left) {
  const std::uint8_t lead = p[0];
  if (lead < 0xc2 || lead > 0xf4 || left < 2) return 0;
  if (lead < 0xe0) return is_continuation(p[1]) ? 2 : 0;
  // The second byte's range excludes overlong forms, surrogates and what is beyond U+10FFFF.
  const std::uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const std::uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (p[1] < low || p[1] > high || left < 3 || !is_continuation(p[2])) return 0;
  if (lead < 0xf0) return 3;
  return left >= 4 && is_continuation(p[3]) ? 4 : 0;
}

bool valid_utf8_scalar(const std::uint8_t* data, std::size_t size) {
  std::size_t i = 0;
  while (i < size) {
    std::uint64_t word;
    if (size - i >= sizeof word) {
      std::memcpy(&word, data + i, sizeof word);
      if ((word & kHighBits) == 0) {
        i += sizeof word;
        continue;
      }
    }
    if (data[i] < 0x80) {
      ++i;
      continue;
    }
    const std::size_t width = multibyte_size(data + i, size - i);
    if (width == 0) return false;
    i += width;
  }
  return true;
}

}  // namespace

#if defined(__x86_64__)
bool valid_utf8_avx2(const std::uint8_t* data, std::size_t size);
bool valid_utf8_avx512(const std::uint8_t* data, std::size_t size);
#elif defined(__AARCH64EL__)
bool valid_utf8_neon(const std::uint8_t* data, std::size_t size);
#endif

Utf8Check utf8_check([[maybe_unused]] Level level) {
#if defined(__x86_64__)
  if (level == Level::kAvx512) return valid_utf8_avx512;
  if (level == Level::kAvx2) return valid_utf8_avx2;
#elif defined(__AARCH64EL__)
  if (level == Level::kNeon) return valid_utf8_neon;
#endif
  return valid_utf8_scalar;
}

}  // namespace tokpack

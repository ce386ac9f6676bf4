#include "core/json/json_escape.hpp"

namespace tokpack {
namespace {

constexpr bool is_high_surrogate(std::int32_t code) { return (code & 0xfc00) == 0xd800; }
constexpr bool is_low_surrogate(std::int32_t code) { return (code & 0xfc00) == 0xdc00; }

std::uint8_t* put_utf8(std::uint8_t* out, std::int32_t code) {
  const auto tail = [](std::int32_t bits) {
    return static_cast<std::uint8_t>(0x80 | (bits & 0x3f));
  };
  if (code < 0x80) {
    *out++ = static_cast<std::uint8_t>(code);
  } else if (code < 0x800) {
    *out++ = static_cast<std::uint8_t>(0xc0 | code >> 6);
    *out++ = tail(code);
  } else if (code < 0x10000) {
    *out++ = static_cast<std::uint8_t>(0xe0 | code >> 12);
    *out++ = tail(code >> 6);
    *out++ = tail(code);
  } else {
    *out++ = static_cast<std::uint8_t>(0xf0 | code >> 18);
    *out++ = tail(code >> 12);
    *out++ = tail(code >> 6);
    *out++ = tail(code);
  }
  return out;
}

}  // namespace

const std::uint8_t* copy_unicode_escape(const std::uint8_t* in, const std::uint8_t* end,
                                        std::uint8_t** out) {
  if (end - in < 4) return nullptr;
  std::int32_t code = hex4(in);
  if (code < 0 || is_low_surrogate(code)) return nullptr;
  in += 4;
  if (is_high_surrogate(code)) {
    if (end - in < 6 || !unicode_escape_follows(in, end)) return nullptr;
    const std::int32_t low = hex4(in + 2);
    if (low < 0 || !is_low_surrogate(low)) return nullptr;
    code = 0x10000 + ((code & 0x3ff) << 10) + (low & 0x3ff);
    in += 6;
  }
  *out = put_utf8(*out, code);
  return in;
}

const std::uint8_t* skip_unicode_escape(const std::uint8_t* in, const std::uint8_t* end) {
  return end - in >= 4 && hex4(in) >= 0 ? in + 4 : nullptr;
}

}  // namespace tokpack

#include "core/json/json_strings.hpp"

#include <cstring>

#include "core/json/json_escape.hpp"

namespace tokpack {

#if defined(__x86_64__)
extern const StringKernels kStringKernelsAvx2;
extern const StringKernels kStringKernelsAvx512;
#elif defined(__AARCH64EL__)
extern const StringKernels kStringKernelsNeon;
#endif

namespace {

constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr std::uint64_t kHighBits = 0x8080808080808080;

// Whether a byte of the word is a quote, a backslash or a control character. No sum carries into
// the next byte, because the bytes have seven bits.
bool holds_special(std::uint64_t word) {
  const std::uint64_t bits = word & ~kHighBits;
  const std::uint64_t not_quote = (bits ^ kOnes * '"') + kOnes * 0x7f;
  const std::uint64_t not_backslash = (bits ^ kOnes * '\\') + kOnes * 0x7f;
  const std::uint64_t not_control = bits + kOnes * 0x60;
  return (~(word | (not_quote & not_backslash & not_control)) & kHighBits) != 0;
}

template <bool kCopy>
const std::uint8_t* walk(const std::uint8_t* in, const std::uint8_t* end, std::uint8_t** out_end,
                         bool* high) {
  std::uint8_t* out = kCopy ? *out_end : nullptr;
  std::uint64_t seen = 0;
  for (;;) {
    std::uint64_t word;
    while (static_cast<std::size_t>(end - in) >= sizeof word) {
      std::memcpy(&word, in, sizeof word);
      if (holds_special(word)) break;
      if constexpr (kCopy) {
        std::memcpy(out, &word, sizeof word);
        out += sizeof word;
      }
      seen |= word;
      in += sizeof word;
    }
    for (int i = 0; i < 8; ++i) {
      if (in == end) return nullptr;
      const std::uint8_t byte = *in++;
      if (byte == '"') {
        *high |= (seen & kHighBits) != 0;
        if constexpr (kCopy) *out_end = out;
        return in;
      }
      if (byte < 0x20) return nullptr;
      if (byte != '\\') {
        seen |= byte;
        if constexpr (kCopy) *out++ = byte;
        continue;
      }
      if (in == end) return nullptr;
      const std::uint8_t escaped = *in++;
      if (const std::uint8_t plain = kUnescaped[escaped]; plain != 0) {
        if constexpr (kCopy) *out++ = plain;
        continue;
      }
      if (escaped != 'u') return nullptr;
      if constexpr (kCopy) {
        in = copy_unicode_escape(in, end, &out);
      } else {
        in = skip_unicode_escape(in, end);
      }
      if (in == nullptr) return nullptr;
    }
  }
}

const std::uint8_t* skip_scalar(const std::uint8_t* in, const std::uint8_t* end, bool* high) {
  return walk<false>(in, end, nullptr, high);
}

constexpr StringKernels kStringKernelsScalar{walk<true>, skip_scalar};

}  // namespace

const StringKernels& string_kernels([[maybe_unused]] Level level) {
#if defined(__x86_64__)
  if (level == Level::kAvx512) return kStringKernelsAvx512;
  if (level == Level::kAvx2) return kStringKernelsAvx2;
#elif defined(__AARCH64EL__)
  if (level == Level::kNeon) return kStringKernelsNeon;
#endif
  return kStringKernelsScalar;
}

}  // namespace tokpack

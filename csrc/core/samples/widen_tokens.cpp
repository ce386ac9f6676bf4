#include "core/samples/widen_tokens.hpp"

#include <bit>
#include <stdexcept>

#include "core/base/load.hpp"

namespace tokpack {

#if defined(__x86_64__)
template <class T>
void widen_avx2(const unsigned char* in, std::int64_t* out, std::size_t n);
#endif

namespace {

#include "core/samples/widen_tokens.inc.hpp"

template <class T>
void widen_scalar(const unsigned char* in, std::int64_t* out, std::size_t n) {
  widen<T>(in, out, n);
}

template <class T>
auto widen_for([[maybe_unused]] Level level) {
#if defined(__x86_64__)
  if (level != Level::kScalar) return &widen_avx2<T>;
#endif
  return &widen_scalar<T>;
}

}  // namespace

WidenTokens widen_tokens(TokenType type, Level level) {
  switch (type) {
    case TokenType::kUint8:
      return widen_for<std::uint8_t>(level);
    case TokenType::kInt8:
      return widen_for<std::int8_t>(level);
    case TokenType::kInt16:
      return widen_for<std::int16_t>(level);
    case TokenType::kUint16:
      return widen_for<std::uint16_t>(level);
    case TokenType::kInt32:
      return widen_for<std::int32_t>(level);
    case TokenType::kInt64:
      return widen_for<std::int64_t>(level);
  }
  throw std::invalid_argument("unknown type of tokens");
}

}  // namespace tokpack

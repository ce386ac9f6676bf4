// Widening tokens with AVX2.
#if defined(__x86_64__)

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/base/load.hpp"

namespace tokpack {

#include "core/base/target_avx2.inc.hpp"

namespace {

#include "core/samples/widen_tokens.inc.hpp"

}  // namespace

template <class T>
void widen_avx2(const unsigned char* in, std::int64_t* out, std::size_t n) {
  widen<T>(in, out, n);
}

template void widen_avx2<std::uint8_t>(const unsigned char*, std::int64_t*, std::size_t);
template void widen_avx2<std::int8_t>(const unsigned char*, std::int64_t*, std::size_t);
template void widen_avx2<std::int16_t>(const unsigned char*, std::int64_t*, std::size_t);
template void widen_avx2<std::uint16_t>(const unsigned char*, std::int64_t*, std::size_t);
template void widen_avx2<std::int32_t>(const unsigned char*, std::int64_t*, std::size_t);
template void widen_avx2<std::int64_t>(const unsigned char*, std::int64_t*, std::size_t);

#include "core/base/target_end.inc.hpp"

}  // namespace tokpack

#endif  // defined(__x86_64__)

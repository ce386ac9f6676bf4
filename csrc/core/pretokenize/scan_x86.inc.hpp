// What the x86 scanners share. Included by each inside its own namespace.

#include "core/pretokenize/scan_common.inc.hpp"

struct X86Isa : CommonIsa {
  static std::uint32_t code_point(std::uint32_t bytes) {
    constexpr std::uint32_t kBits[4] = {0x1F3F0000, 0x1F3F0000, 0x0F3F3F00, 0x073F3F3F};
    return _pext_u32(__builtin_bswap32(bytes), kBits[bytes >> 4 & 3]);
  }
};

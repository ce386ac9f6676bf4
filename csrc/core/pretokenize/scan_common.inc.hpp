// The operations of a scanner that need no vectors. Included by each scanner inside its own
// namespace; its `Isa` inherits them, unless its instruction set has something better.

struct CommonIsa {
  // The code point of a character of 2 to 4 bytes, the first of which is the lowest of `bytes`.
  static std::uint32_t code_point(std::uint32_t bytes) {
    std::uint8_t b[4];
    std::memcpy(b, &bytes, sizeof b);
    constexpr std::uint32_t kShift[4] = {12, 12, 6, 0};
    constexpr std::uint32_t kBits[4] = {0x7FF, 0x7FF, 0xFFFF, 0x1FFFFF};
    const unsigned kind = b[0] >> 4 & 3;
    const std::uint32_t all =
        (b[0] & 0x3Fu) << 18 | (b[1] & 0x3Fu) << 12 | (b[2] & 0x3Fu) << 6 | (b[3] & 0x3Fu);
    return all >> kShift[kind] & kBits[kind];
  }

  // Writes base + i for each bit i of the mask, and returns their number. May write behind them, 64
  // elements in all.
  static std::size_t flatten(std::uint64_t mask, std::uint32_t base, std::uint32_t* out) {
    const auto count = static_cast<std::size_t>(std::popcount(mask));
    for (std::uint32_t* end = out + count; out != end; mask &= mask - 1) {
      *out++ = base + static_cast<std::uint32_t>(std::countr_zero(mask));
    }
    return count;
  }
};

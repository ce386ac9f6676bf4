// Conversion of the tokens of a .bin to int64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/cpu.hpp"

namespace tokpack {

enum class TokenType : std::uint8_t { kUint8, kInt8, kInt16, kUint16, kInt32, kInt64 };

// Writes n tokens at `in`, little endian and at any address, to out[0, n).
using WidenTokens = void (*)(const unsigned char* in, std::int64_t* out, std::size_t n);

// REQUIRES: this machine has the level. Throws std::invalid_argument for an unknown type.
WidenTokens widen_tokens(TokenType type, Level level);

}  // namespace tokpack

// Which instruction sets this machine has, asked once at run time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tokpack {

enum class Level : std::uint8_t { kScalar, kAvx2, kAvx512 };

// The best level of this machine. kAvx2 means AVX2 with BMI, BMI2, AES and PCLMUL; kAvx512 adds F,
// BW, CD, DQ, VL, VBMI and VBMI2 of AVX-512.
Level best_level();

// "auto", "scalar", "avx2", "avx512"; nothing when the name is unknown or the machine lacks it.
std::optional<Level> level_by_name(std::string_view name);
std::string_view level_name(Level level);

}  // namespace tokpack

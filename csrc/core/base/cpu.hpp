// Which instruction sets this machine has, asked once at run time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tokpack {

// kAvx2 means AVX2 with BMI, BMI2, AES and PCLMUL; kAvx512 adds F, BW, CD, DQ, VL, VBMI and VBMI2
// of AVX-512. kNeon is what every 64-bit ARM has (little endian: __AARCH64EL__).
enum class Level : std::uint8_t { kScalar, kAvx2, kAvx512, kNeon };

// The levels of this machine: kScalar first, the best last.
std::span<const Level> levels();
inline Level best_level() { return levels().back(); }

// "auto" or the name of a level; nothing when the name is unknown or the machine lacks it.
std::optional<Level> level_by_name(std::string_view name);
std::string_view level_name(Level level);

}  // namespace tokpack

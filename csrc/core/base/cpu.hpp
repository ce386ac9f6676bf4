// Levels: the instruction sets for which kernels have versions. What this machine has is found out
// once, at run time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tokpack {

// kScalar is any processor. kAvx2 is AVX2 with BMI, BMI2, LZCNT, POPCNT and AES; kAvx512 adds F,
// BW, CD, DQ, VL, VBMI and VBMI2 of AVX-512, and VAES. kNeon is any little-endian 64-bit ARM
// (__AARCH64EL__). base/target_*.inc.hpp tell the compiler the same.
enum class Level : std::uint8_t { kScalar, kAvx2, kAvx512, kNeon };

// The levels of this machine: kScalar first, the best last.
std::span<const Level> levels();
inline Level best_level() { return levels().back(); }

// The level with this name, or the best one for "auto"; nullopt if the name is unknown or this
// machine lacks the level.
std::optional<Level> level_by_name(std::string_view name);
std::string_view level_name(Level level);

}  // namespace tokpack

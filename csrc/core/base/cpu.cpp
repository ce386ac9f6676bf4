#include "core/base/cpu.hpp"

#include <cstddef>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tokpack {

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports() knows these two.
static bool has_lzcnt() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 5 & 1) != 0;
}
static bool has_vaes() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 9 & 1) != 0;
}
#endif

std::span<const Level> levels() {
#if defined(__x86_64__)
  static constexpr Level kLevels[] = {Level::kScalar, Level::kAvx2, Level::kAvx512};
  static const std::size_t count = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2") && has_lzcnt() &&
                      __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("aes");
    if (!avx2) return 1;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vbmi") &&
                        __builtin_cpu_supports("avx512vbmi2") && has_vaes();
    return avx512 ? 3 : 2;
  }();
  return {kLevels, count};
#elif defined(__AARCH64EL__)
  static constexpr Level kLevels[] = {Level::kScalar, Level::kNeon};
  return kLevels;
#else
  static constexpr Level kLevels[] = {Level::kScalar};
  return kLevels;
#endif
}

std::string_view level_name(Level level) {
  switch (level) {
    case Level::kScalar:
      return "scalar";
    case Level::kAvx2:
      return "avx2";
    case Level::kAvx512:
      return "avx512";
    case Level::kNeon:
      return "neon";
  }
  return "scalar";
}

std::optional<Level> level_by_name(std::string_view name) {
  if (name == "auto") return best_level();
  for (const Level level : levels()) {
    if (name == level_name(level)) return level;
  }
  return std::nullopt;
}

}  // namespace tokpack

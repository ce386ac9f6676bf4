#include "core/base/cpu.hpp"

namespace tokpack {

Level best_level() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const Level level = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("aes") &&
                      __builtin_cpu_supports("pclmul");
    if (!avx2) return Level::kScalar;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vbmi") &&
                        __builtin_cpu_supports("avx512vbmi2");
    return avx512 ? Level::kAvx512 : Level::kAvx2;
  }();
  return level;
#else
  return Level::kScalar;
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
  }
  return "scalar";
}

std::optional<Level> level_by_name(std::string_view name) {
  if (name == "auto") return best_level();
  for (Level level : {Level::kScalar, Level::kAvx2, Level::kAvx512}) {
    if (name == level_name(level) && level <= best_level()) return level;
  }
  return std::nullopt;
}

}  // namespace tokpack

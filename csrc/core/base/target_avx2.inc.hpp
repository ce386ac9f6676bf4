// What follows, up to target_end.inc.hpp, is compiled for Level::kAvx2 (base/cpu.hpp). Include it
// after all other headers: the linker keeps one copy of each inline function of the standard
// library, which must not be one that was compiled for AVX2.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt,aes"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt,aes")
#endif

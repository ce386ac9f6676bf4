// What follows, up to target_end.inc.hpp, is compiled for Level::kAvx2 (base/cpu.hpp). Include it
// after all other headers: of an inline function of the standard library the linker keeps one copy
// for all files, and that must not be one for AVX2.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt,aes"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt,aes")
#endif

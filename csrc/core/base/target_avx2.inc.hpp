// What follows is compiled for AVX2 and what the level of that name implies, up to
// target_end.inc.hpp. It stands behind all other headers: an inline function of the standard
// library that was compiled for AVX2 could be the one that the linker keeps for all processors.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt,aes"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt,aes")
#endif

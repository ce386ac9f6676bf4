// What follows is compiled for AVX-512 and what the level of that name implies, up to
// target_end.inc.hpp. It stands behind all other headers, as target_avx2.inc.hpp does.
#if defined(__clang__)
#pragma clang attribute push(                                                                                        \
    __attribute__((target(                                                                                           \
        "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt,aes,vaes"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt,aes,vaes")
#endif

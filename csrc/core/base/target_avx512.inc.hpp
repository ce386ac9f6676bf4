// What follows, up to target_end.inc.hpp, is compiled for Level::kAvx512 (base/cpu.hpp). Include it
// after all other headers, as target_avx2.inc.hpp.
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

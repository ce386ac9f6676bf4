// The end of what target_avx2.inc.hpp or target_avx512.inc.hpp began.
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

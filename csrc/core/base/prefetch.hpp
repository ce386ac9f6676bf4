// Asking for a cache line before it is needed.
#pragma once

namespace tokpack {

// Any address may be asked for, also one that is not mapped: the hint is dropped.
inline void prefetch([[maybe_unused]] const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address);
#endif
}

}  // namespace tokpack

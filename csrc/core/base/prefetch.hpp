// Asking for a cache line before it is needed.
#pragma once

namespace tokpack {

// A hint: the processor ignores it when nothing is mapped at the address.
inline void prefetch([[maybe_unused]] const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address);
#endif
}

}  // namespace tokpack

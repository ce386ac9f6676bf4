// Asking for a cache line before it is needed.
#pragma once

namespace tokpack {

// A hint: the processor ignores it when nothing is mapped at the address.
inline void prefetch(const void* address) { __builtin_prefetch(address); }

}  // namespace tokpack

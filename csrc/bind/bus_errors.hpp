// Names the mapped file that was cut off where the system ends a process that reads it.
#pragma once

#include <atomic>

namespace tokpack {

// Whether this process may have another handler by now: it is new, or a fork of torch, whose
// workers get one of their own that guesses at shared memory.
inline std::atomic<bool> bus_errors_unwatched{true};

void install_bus_handler();

// Takes SIGBUS, where it is not taken yet; handlers of before come behind. Costs a load else.
inline void watch_bus_errors() {
  if (bus_errors_unwatched.load(std::memory_order_relaxed)) install_bus_handler();
}

}  // namespace tokpack

// Names the mapped file if a process is ended because it read a part that was cut off.
#pragma once

#include <atomic>

namespace tokpack {

// Whether this process may have another handler by now: it is new, or a fork of torch, whose
// workers get one of their own that guesses at shared memory.
inline std::atomic<bool> bus_errors_unwatched{true};

void install_bus_handler();

// Installs the handler of SIGBUS unless it is installed; it calls the previous one. Otherwise it
// costs one load.
inline void watch_bus_errors() {
  if (bus_errors_unwatched.load(std::memory_order_relaxed)) install_bus_handler();
}

}  // namespace tokpack

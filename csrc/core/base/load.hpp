// Reading a number at any address, aligned or not.
#pragma once

#include <cstring>

namespace tokpack {

template <class T>
inline T load(const unsigned char* address) {
  T value;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

}  // namespace tokpack

// Widening tokens: a plain loop, which the compiler turns into vectors of the instruction set that
// it compiles for. Included by each kernel inside its own namespace.

template <class T>
void widen(const unsigned char* in, std::int64_t* out, std::size_t n) {
  if constexpr (std::endian::native == std::endian::little) {
    for (std::size_t i = 0; i < n; ++i) out[i] = load<T>(in + i * sizeof(T));
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      std::uint64_t value = 0;
      for (std::size_t k = sizeof(T); k-- > 0;) value = value << 8 | in[i * sizeof(T) + k];
      out[i] = static_cast<T>(value);
    }
  }
}

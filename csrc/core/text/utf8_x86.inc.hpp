// What the x86 validations of UTF-8 share. Included by each inside its own namespace, after an
// `Isa` as utf8_vectors.inc.hpp wants it, with load(), which gives zeros after the end; high(), a
// bit for each byte above 0x7F; and is_zero().

#include "core/text/utf8_vectors.inc.hpp"

// A block of ASCII is skipped unless the block before it ends inside a character. The last block is
// filled with zeros, which are ASCII: so a character that the end cuts off is an error there.
inline bool is_valid(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kBlock = sizeof(Isa::Bytes);
  Isa::Bytes before = Isa::all(0);
  Isa::Bytes errors = Isa::all(0);
  std::uint64_t high_before = 0;
  for (std::size_t i = 0; i <= size; i += kBlock) {
    const Isa::Bytes block = Isa::load(data + i, size - i);
    const std::uint64_t high = Isa::high(block);
    if ((high | high_before >> (kBlock - 1)) != 0) errors |= errors_of(block, before);
    before = block;
    high_before = high;
  }
  return Isa::is_zero(errors);
}

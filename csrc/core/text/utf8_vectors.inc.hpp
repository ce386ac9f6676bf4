// UTF-8 validation a vector at a time, by the tables of utf8_errors.hpp. Included by each
// instruction set's file inside its own namespace, after a struct `Isa` of operations on `Bytes`, a
// vector: all() repeats a byte; shifted<k>() moves the bytes up by k, the last k of `before` in
// front; look_up() takes entries of a table by nibbles; common() is the bits in all three; minus()
// does not go below 0.

// Not zero where a pair of bytes that ends in `block` is an error. `before`: the bytes before it.
inline Isa::Bytes errors_of(Isa::Bytes block, Isa::Bytes before) {
  const Isa::Bytes first = Isa::shifted<1>(block, before);
  const Isa::Bytes pairs =
      Isa::common(Isa::look_up(utf8_errors::kFirstHigh, Isa::high_nibbles(first)),
                  Isa::look_up(utf8_errors::kFirstLow, Isa::low_nibbles(first)),
                  Isa::look_up(utf8_errors::kSecondHigh, Isa::high_nibbles(block)));
  // Two continuations in a row are right exactly where the later one is the third or fourth byte of
  // a character: bit 7 of `wanted`, and of `pairs` where the two continuations are.
  const Isa::Bytes third = Isa::minus(Isa::shifted<2>(block, before), 0x60);
  const Isa::Bytes fourth = Isa::minus(Isa::shifted<3>(block, before), 0x70);
  const Isa::Bytes wanted = (third | fourth) & Isa::all(0x80);
  return pairs ^ wanted;
}

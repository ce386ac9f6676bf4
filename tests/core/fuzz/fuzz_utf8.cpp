// UTF-8 validation: all levels against a decoder that goes byte by byte.
#include "core/text/utf8.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokpack;
  using namespace tokpack::test;
  const Exact input(as_text(data, size));
  // What needs no repair is valid.
  const bool valid = repaired(data, size) == as_text(data, size);
  for (const Level level : levels()) {
    MUST(utf8_check(level)(input.span().data(), size) == valid);
  }
  return 0;
}

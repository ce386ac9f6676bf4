// Cut one JSON array, which arrives in chunks, into JSON lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/buffer.hpp"

namespace tokpack {

// What is wrong with the array, and where.
struct JsonArrayError {
  const char* reason;
  std::uint64_t position;  // bytes from the start of the array's first chunk
};

// Each element becomes one line. Its newlines become blanks, or \r inside strings, where a newline
// is an error and \r is one too. Only the borders of elements are found: a malformed element
// becomes a malformed line. No bytes are kept from one call to the next.
class JsonArray {
 public:
  // Appends the lines to `out`, at most as many bytes as the chunk has. After an error each later
  // call returns it again.
  std::optional<JsonArrayError> feed(std::span<const std::uint8_t> chunk,
                                     Buffer<std::uint8_t>& out);

  // Whether the array's closing bracket was seen.
  bool finished() const { return state_ == State::kAfter; }

 private:
  enum class State : std::uint8_t {
    kBefore,   // before the opening bracket
    kFirst,    // after it
    kNext,     // after a comma
    kElement,  // inside of an element, outside of its strings
    kString,
    kEscape,  // after a backslash in a string
    kAfter,   // after the closing bracket
  };

  std::uint64_t position_ = 0;
  std::uint64_t depth_ = 0;  // brackets and braces open inside of the element
  State state_ = State::kBefore;
  std::optional<JsonArrayError> error_;
};

}  // namespace tokpack

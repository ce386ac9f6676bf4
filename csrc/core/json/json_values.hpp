// Cuts JSON values, which arrive in chunks, into JSON lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/buffer.hpp"

namespace tokpack {

// What is wrong with the text, and where.
struct JsonValuesError {
  const char* reason;
  std::uint64_t position;  // bytes from the start of the first chunk
};

// Records are values that follow each other, with white space or a comma between them or nothing,
// and the elements of those that are arrays. With a path they are the elements of the array under
// that key of each value, which is an object: ("a", "b") is b inside of a.
//
// Each record becomes one line. Its newlines become blanks, or \r inside strings, where a newline
// is an error and \r is one too. Only the borders of records are found: a malformed record becomes
// a malformed line. No bytes are kept from one call to the next.
class JsonValues {
 public:
  explicit JsonValues(std::vector<std::string> path = {}) : path_(std::move(path)) {}

  // Appends the lines to `out`, at most twice as many bytes as the chunk has. After an error each
  // later call returns it again.
  std::optional<JsonValuesError> feed(std::span<const std::uint8_t> chunk,
                                      Buffer<std::uint8_t>& out);

  // Whether the text may end here: no array, object or string is open.
  bool finished() const {
    return state_ == State::kTop || (state_ == State::kRecord && !in_array_ && depth_ == 0);
  }

 private:
  enum class State : std::uint8_t {
    kTop,    // between values
    kFirst,  // in an array of records, after its bracket
    kNext,   // after a comma of it
    kRecord,
    kString,  // inside of a record's string
    kEscape,  // after a backslash in it
    // On the way along the path, in an object that may have its next key:
    kMember,  // after the object's brace, or a comma
    kKey,
    kKeyEscape,
    kColon,
    kValue,  // after the colon
    kSkip,   // inside of a value that is passed over
    kSkipString,
    kSkipEscape,
    kAfter,  // after a value
  };

  const char* close_object();
  void close_array();

  std::vector<std::string> path_;
  std::uint64_t position_ = 0;
  std::uint64_t depth_ = 0;  // brackets and braces open inside of a record, or what is passed over
  std::size_t level_ = 0;    // keys of the path that lead to the object
  std::size_t key_at_ = 0;   // bytes of a key that equal the path; kOther: another key
  State state_ = State::kTop;
  bool in_array_ = false;     // records are elements
  bool after_value_ = false;  // at the top, where a comma may follow
  bool found_ = false;        // the object has had the key of the path
  std::optional<JsonValuesError> error_;
};

}  // namespace tokpack

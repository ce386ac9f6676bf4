// Extracts the string under one top-level key of JSON lines, and the places of the values of other
// keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/cpu.hpp"
#include "core/json/json_strings.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {

// Where the documents of a block go; they are appended.
struct ExtractOutput {
  Buffer<std::uint8_t>& text;   // of all documents; kStringSlack zero bytes follow it
  Buffer<std::int64_t>& spans;  // begin and end in text of each document; empty for a slow one
  Buffer<std::int64_t>& lines;  // line of each document in the block, from 0
  Buffer<std::int64_t>& slow;  // of each slow one: document, begin and end of its line in the block
  // For each document and each kept key: begin and end in the block of the value's JSON text; empty
  // if the record lacks the key, or is slow. If a record has a key twice, the last one counts.
  Buffer<std::int64_t>& values;
};

// A record is slow, and left to another parser, unless it is a well-formed object (RFC 8259) of
// valid UTF-8, nested no deeper than 64, that has the key once, without escapes, with a string as
// its value. The texts of all others are what Python's json module gives. Without a key every
// well-formed record is read, and no record has a text.
class JsonLines {
 public:
  JsonLines(std::optional<std::string> key, Level level, std::vector<std::string> kept = {});

  // Appends the documents of the block, and returns its number of lines, blank ones included.
  std::int64_t extract(std::span<const std::uint8_t> block, const ExtractOutput& output) const;

 private:
  std::optional<std::string> key_;
  std::vector<std::string> kept_;
  const StringKernels& strings_;
  Utf8Check valid_utf8_;
};

}  // namespace tokpack

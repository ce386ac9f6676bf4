// Extract the string under one top-level key from JSON lines, and where the values of others lie.
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
  Buffer<std::uint8_t>& text;   // of all documents; kStringSlack zero bytes lie behind its end
  Buffer<std::int64_t>& spans;  // begin and end in text of each document; empty for a slow one
  Buffer<std::int64_t>& lines;  // line of each document in the block, from 0
  Buffer<std::int64_t>& slow;  // of each slow one: document, begin and end of its line in the block
  // Of each document, for each of the kept keys: begin and end in the block of the value's JSON
  // text; empty where the record has none, and for a slow one. Of a key given twice, the last.
  Buffer<std::int64_t>& values;
};

// A record is slow, that is, left to another parser, unless it is a well-formed object (RFC 8259)
// of valid UTF-8, nested no deeper than 64, that has the key once, without escapes, with a string
// as its value. Of the other records the text is what Python's json module gives. Without a key
// each well-formed record is read, and none has a text.
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

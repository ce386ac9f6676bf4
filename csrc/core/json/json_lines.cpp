#include "core/json/json_lines.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tokpack {
namespace {

using Byte = std::uint8_t;

constexpr int kMaxDepth = 64;
// Parsers differ on longer ones: Python refuses integers of more than 4300 digits, ujson takes
// those of more than 308 for infinity.
constexpr std::ptrdiff_t kMaxNumberSize = 256;

constexpr bool is_digit(Byte byte) { return byte >= '0' && byte <= '9'; }

// Reads one line. Every step returns the byte after what it read, or null to give up on the line.
// \n is not white space here, and the string kernels stop at it as at any control character, so
// that no step leaves the line.
class RecordParser {
 public:
  // `values` gets two offsets from `base` for each kept key.
  RecordParser(const Byte* base, const Byte* end, const std::optional<std::string>& key,
               std::span<const std::string> kept, std::int64_t* values,
               const StringKernels& strings)
      : base_(base),
        end_(end),
        key_(key),
        kept_(kept),
        values_(values),
        strings_(strings),
        found_(!key) {}

  // Appends the string under the key at *out. Returns the end of the line, without its \n.
  const Byte* parse(const Byte* in, Byte** out);

  const Byte* space(const Byte* in) const {
    while (in != end_ && (*in == ' ' || *in == '\t' || *in == '\r')) ++in;
    return in;
  }
  Byte peek(const Byte* in) const { return in != end_ ? *in : Byte{'\n'}; }
  bool saw_high() const { return high_; }

 private:
  const Byte* member(const Byte* in, Byte** out);
  const Byte* skip_value(const Byte* in, int depth);
  const Byte* skip_object(const Byte* in, int depth);
  const Byte* skip_array(const Byte* in, int depth);
  const Byte* skip_number(const Byte* in) const;
  const Byte* skip_literal(const Byte* in, std::string_view literal) const;
  const Byte* skip_digits(const Byte* in) const {
    while (is_digit(peek(in))) ++in;
    return in;
  }
  const Byte* colon(const Byte* in) const {
    in = space(in);
    return peek(in) == ':' ? space(in + 1) : nullptr;
  }
  void note_value(std::string_view name, const Byte* begin, const Byte* end) {
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      if (kept_[i] != name) continue;
      values_[2 * i] = begin - base_;
      values_[2 * i + 1] = end - base_;
    }
  }
  bool is_key(const Byte* in) const {
    return key_ && static_cast<std::size_t>(end_ - in) > key_->size() && in[key_->size()] == '"' &&
           std::memcmp(in, key_->data(), key_->size()) == 0;
  }

  const Byte* base_;
  const Byte* end_;
  const std::optional<std::string>& key_;
  std::span<const std::string> kept_;
  std::int64_t* values_;
  const StringKernels& strings_;
  bool found_;  // the key, if there is one
  bool high_ = false;
};

const Byte* RecordParser::parse(const Byte* in, Byte** out) {
  if (peek(in) != '{') return nullptr;
  in = space(in + 1);
  for (;;) {
    in = member(in, out);
    if (in == nullptr) return nullptr;
    in = space(in);
    if (peek(in) == '}') break;
    if (peek(in) != ',') return nullptr;
    in = space(in + 1);
  }
  in = space(in + 1);
  return found_ && peek(in) == '\n' ? in : nullptr;
}

// One member of the record itself.
const Byte* RecordParser::member(const Byte* in, Byte** out) {
  if (peek(in) != '"') return nullptr;
  ++in;
  if (is_key(in)) {
    if (found_) return nullptr;
    found_ = true;
    in = colon(in + key_->size() + 1);
    if (in == nullptr || peek(in) != '"') return nullptr;
    const Byte* const value = in;
    in = strings_.copy(in + 1, end_, out, &high_);
    if (in != nullptr && !kept_.empty()) note_value(*key_, value, in);
    return in;
  }
  const Byte* const after = strings_.skip(in, end_, &high_);
  if (after == nullptr) return nullptr;
  // An escaped name could be the key.
  if (key_ && std::memchr(in, '\\', static_cast<std::size_t>(after - in)) != nullptr)
    return nullptr;
  const Byte* const value = colon(after);
  if (value == nullptr) return nullptr;
  const Byte* const value_end = skip_value(value, 1);
  if (value_end != nullptr && !kept_.empty()) {
    const auto size = static_cast<std::size_t>(after - 1 - in);
    note_value({reinterpret_cast<const char*>(in), size}, value, value_end);
  }
  return value_end;
}

const Byte* RecordParser::skip_value(const Byte* in, int depth) {
  switch (peek(in)) {
    case '"':
      return strings_.skip(in + 1, end_, &high_);
    case '{':
      return skip_object(in, depth);
    case '[':
      return skip_array(in, depth);
    case 't':
      return skip_literal(in, "true");
    case 'f':
      return skip_literal(in, "false");
    case 'n':
      return skip_literal(in, "null");
    default:
      return skip_number(in);
  }
}

const Byte* RecordParser::skip_object(const Byte* in, int depth) {
  if (depth == kMaxDepth) return nullptr;
  in = space(in + 1);
  if (peek(in) == '}') return in + 1;
  for (;;) {
    if (peek(in) != '"') return nullptr;
    in = strings_.skip(in + 1, end_, &high_);
    if (in == nullptr) return nullptr;
    in = colon(in);
    if (in == nullptr) return nullptr;
    in = skip_value(in, depth + 1);
    if (in == nullptr) return nullptr;
    in = space(in);
    if (peek(in) == '}') return in + 1;
    if (peek(in) != ',') return nullptr;
    in = space(in + 1);
  }
}

const Byte* RecordParser::skip_array(const Byte* in, int depth) {
  if (depth == kMaxDepth) return nullptr;
  in = space(in + 1);
  if (peek(in) == ']') return in + 1;
  for (;;) {
    in = skip_value(in, depth + 1);
    if (in == nullptr) return nullptr;
    in = space(in);
    if (peek(in) == ']') return in + 1;
    if (peek(in) != ',') return nullptr;
    in = space(in + 1);
  }
}

const Byte* RecordParser::skip_number(const Byte* in) const {
  const Byte* const begin = in;
  if (peek(in) == '-') ++in;
  if (peek(in) == '0') {
    ++in;
  } else {
    if (!is_digit(peek(in))) return nullptr;
    in = skip_digits(in);
  }
  if (peek(in) == '.') {
    if (!is_digit(peek(in + 1))) return nullptr;
    in = skip_digits(in + 1);
  }
  if (peek(in) == 'e' || peek(in) == 'E') {
    ++in;
    if (peek(in) == '+' || peek(in) == '-') ++in;
    if (!is_digit(peek(in))) return nullptr;
    in = skip_digits(in);
  }
  return in - begin <= kMaxNumberSize ? in : nullptr;
}

const Byte* RecordParser::skip_literal(const Byte* in, std::string_view literal) const {
  if (static_cast<std::size_t>(end_ - in) < literal.size()) return nullptr;
  return std::memcmp(in, literal.data(), literal.size()) == 0 ? in + literal.size() : nullptr;
}

const Byte* find_newline(const Byte* in, const Byte* end) {
  const void* newline = std::memchr(in, '\n', static_cast<std::size_t>(end - in));
  return newline != nullptr ? static_cast<const Byte*>(newline) : end;
}

// Whether the key can be spelled without escapes. Then a name without escapes is the key only if
// its bytes are the same.
bool has_plain_spelling(std::string_view key) {
  return std::none_of(key.begin(), key.end(),
                      [](char c) { return c == '"' || c == '\\' || static_cast<Byte>(c) < 0x20; });
}

}  // namespace

JsonLines::JsonLines(std::optional<std::string> key, Level level, std::vector<std::string> kept)
    : key_(std::move(key)),
      kept_(std::move(kept)),
      strings_(string_kernels(level)),
      valid_utf8_(utf8_check(level)) {}

std::int64_t JsonLines::extract(std::span<const std::uint8_t> block,
                                const ExtractOutput& output) const {
  const Byte* const base = block.data();
  const Byte* const end = base + block.size();
  const bool key_is_plain = !key_ || has_plain_spelling(*key_);
  Buffer<Byte>& text = output.text;
  text.reserve(text.size() + (key_ ? block.size() : 0) + kStringSlack);
  Byte* out = text.data() + text.size();
  std::vector<std::int64_t> values(2 * kept_.size());
  std::int64_t line = 0;
  for (const Byte* begin = base; begin != end; ++line) {
    std::fill(values.begin(), values.end(), 0);
    RecordParser parser(base, end, key_, kept_, values.data(), strings_);
    const Byte* line_end = parser.space(begin);
    if (parser.peek(line_end) != '\n') {
      Byte* document_end = out;
      line_end = key_is_plain ? parser.parse(line_end, &document_end) : nullptr;
      if (line_end != nullptr && parser.saw_high() &&
          !valid_utf8_(begin, static_cast<std::size_t>(line_end - begin))) {
        line_end = nullptr;
      }
      if (line_end == nullptr) {
        line_end = find_newline(begin, end);
        document_end = out;
        std::fill(values.begin(), values.end(), 0);
        output.slow.push_back(static_cast<std::int64_t>(output.lines.size()));
        output.slow.push_back(begin - base);
        output.slow.push_back(line_end - base);
      }
      output.lines.push_back(line);
      for (const std::int64_t value : values) output.values.push_back(value);
      output.spans.push_back(out - text.data());
      output.spans.push_back(document_end - text.data());
      out = document_end;
    }
    begin = line_end != end ? line_end + 1 : end;
  }
  std::memset(out, 0, kStringSlack);
  text.resize(static_cast<std::size_t>(out - text.data()));
  return line;
}

}  // namespace tokpack

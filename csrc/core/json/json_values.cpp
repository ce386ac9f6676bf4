#include "core/json/json_values.hpp"

#include <bit>
#include <cstring>

namespace tokpack {
namespace {

constexpr std::size_t kOther = static_cast<std::size_t>(-1);
constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr std::uint64_t kHighBits = 0x8080808080808080;

constexpr bool is_space(std::uint8_t byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

// High bit of each byte that is zero, exact up to the first one.
constexpr std::uint64_t zero_bytes(std::uint64_t word) {
  return (word - kOnes) & ~word & kHighBits;
}

// Copies the inside of a string up to a quote, a backslash or a newline. Returns the number of
// bytes.
std::size_t copy_plain(const std::uint8_t* in, std::size_t size, std::uint8_t* out) {
  std::size_t i = 0;
  for (std::uint64_t word; size - i >= sizeof word; i += sizeof word) {
    std::memcpy(&word, in + i, sizeof word);
    std::memcpy(out + i, &word, sizeof word);
    const std::uint64_t stops = zero_bytes(word ^ kOnes * '"') | zero_bytes(word ^ kOnes * '\\') |
                                zero_bytes(word ^ kOnes * '\n');
    if (stops == 0) continue;
    if constexpr (std::endian::native == std::endian::little) {
      return i + static_cast<std::size_t>(std::countr_zero(stops)) / 8;
    }
    break;
  }
  for (; i < size; ++i) {
    if (in[i] == '"' || in[i] == '\\' || in[i] == '\n') break;
    out[i] = in[i];
  }
  return i;
}

}  // namespace

// After the closing brace of an object on the path. Returns what is wrong, or null.
const char* JsonValues::close_object() {
  if (!found_) return "no such key in the object that ends";
  if (level_ == 0) {
    state_ = State::kTop;
    after_value_ = true;
  } else {
    --level_;
    state_ = State::kAfter;
  }
  return nullptr;
}

// After the closing bracket of an array of records.
void JsonValues::close_array() {
  found_ = after_value_ = true;
  state_ = path_.empty() ? State::kTop : State::kAfter;
}

std::optional<JsonValuesError> JsonValues::feed(std::span<const std::uint8_t> chunk,
                                                Buffer<std::uint8_t>& buffer) {
  if (error_) return error_;
  buffer.reserve(buffer.size() + 2 * chunk.size());
  std::uint8_t* out = buffer.data() + buffer.size();
  std::size_t i = 0;
  const auto error = [&](const char* reason) {
    error_ = JsonValuesError{reason, position_ + i};
    return error_;
  };
  const auto end_record = [&] {
    *out++ = '\n';
    state_ = State::kTop;
    after_value_ = true;
  };
  while (i < chunk.size()) {
    const std::uint8_t byte = chunk[i];
    switch (state_) {
      case State::kTop:
        if (is_space(byte)) break;
        if (byte == ',' && after_value_) {
          after_value_ = false;
        } else if (byte == ',' || byte == ']' || byte == '}') {
          return error("expected a value");
        } else if (!path_.empty()) {
          if (byte != '{') return error("expected an object");
          found_ = false;
          state_ = State::kMember;
        } else {
          in_array_ = byte == '[';
          state_ = in_array_ ? State::kFirst : State::kRecord;
          if (!in_array_) continue;
        }
        break;
      case State::kFirst:
      case State::kNext:
        if (is_space(byte)) break;
        if (byte == ']' && state_ == State::kFirst) {
          close_array();
          break;
        }
        if (byte == ',' || byte == ']') return error("expected an element");
        state_ = State::kRecord;
        continue;
      case State::kRecord:
        if (depth_ == 0 && in_array_ && (byte == ',' || byte == ']')) {
          *out++ = '\n';
          state_ = State::kNext;
          if (byte == ']') close_array();
          break;
        }
        if (depth_ == 0 && !in_array_ && (byte == ',' || is_space(byte))) {
          end_record();
          continue;
        }
        if (byte == '"') {
          state_ = State::kString;
        } else if (byte == '{' || byte == '[') {
          ++depth_;
        } else if (byte == '}' || byte == ']') {
          if (depth_ == 0) return error("unexpected '}'");
          --depth_;
        }
        *out++ = byte == '\n' ? std::uint8_t{' '} : byte;
        if (depth_ == 0 && !in_array_ && (byte == '}' || byte == ']')) end_record();
        break;
      case State::kString: {
        const std::size_t plain = copy_plain(chunk.data() + i, chunk.size() - i, out);
        out += plain;
        i += plain;
        if (i == chunk.size()) continue;
        if (chunk[i] == '"') {
          state_ = State::kRecord;
        } else if (chunk[i] == '\\') {
          state_ = State::kEscape;
        }
        *out++ = chunk[i] == '\n' ? std::uint8_t{'\r'} : chunk[i];
        if (chunk[i] == '"' && depth_ == 0 && !in_array_) end_record();
        break;
      }
      case State::kEscape:
        state_ = State::kString;
        *out++ = byte == '\n' ? std::uint8_t{'\r'} : byte;
        break;
      case State::kMember:
        if (is_space(byte)) break;
        if (byte == '}') {
          if (const char* reason = close_object()) return error(reason);
          break;
        }
        if (byte != '"') return error("expected a key");
        key_at_ = 0;
        state_ = State::kKey;
        break;
      case State::kKey: {
        const std::string& key = path_[level_];
        if (byte == '"') {
          if (key_at_ != key.size()) key_at_ = kOther;
          state_ = State::kColon;
        } else if (byte == '\\') {
          key_at_ = kOther;
          state_ = State::kKeyEscape;
        } else if (key_at_ < key.size() && static_cast<std::uint8_t>(key[key_at_]) == byte) {
          ++key_at_;
        } else {
          key_at_ = kOther;
        }
        break;
      }
      case State::kKeyEscape:
        state_ = State::kKey;
        break;
      case State::kColon:
        if (is_space(byte)) break;
        if (byte != ':') return error("expected ':'");
        state_ = State::kValue;
        break;
      case State::kValue:
        if (is_space(byte)) break;
        if (key_at_ == kOther) {
          state_ = State::kSkip;
          continue;
        }
        if (found_) return error("the key a second time");
        if (level_ + 1 == path_.size()) {
          if (byte != '[') return error("no array under the key");
          in_array_ = true;
          state_ = State::kFirst;
        } else {
          if (byte != '{') return error("no object under the key");
          ++level_;
          state_ = State::kMember;
        }
        break;
      case State::kSkip:
        if (depth_ == 0 && (byte == ',' || byte == '}')) {
          state_ = State::kAfter;
          continue;
        }
        if (byte == '"') {
          state_ = State::kSkipString;
        } else if (byte == '{' || byte == '[') {
          ++depth_;
        } else if (byte == '}' || byte == ']') {
          if (depth_ == 0) return error("unexpected ']'");
          --depth_;
        }
        break;
      case State::kSkipString:
        if (byte == '"') {
          state_ = State::kSkip;
        } else if (byte == '\\') {
          state_ = State::kSkipEscape;
        }
        break;
      case State::kSkipEscape:
        state_ = State::kSkipString;
        break;
      case State::kAfter:
        if (is_space(byte)) break;
        if (byte == ',') {
          state_ = State::kMember;
        } else if (byte != '}') {
          return error("expected ',' or '}'");
        } else if (const char* reason = close_object()) {
          return error(reason);
        }
        break;
    }
    ++i;
  }
  position_ += chunk.size();
  buffer.resize(static_cast<std::size_t>(out - buffer.data()));
  return std::nullopt;
}

}  // namespace tokpack

#include "core/json/json_array.hpp"

#include <bit>
#include <cstring>

namespace tokpack {
namespace {

constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr std::uint64_t kHighBits = 0x8080808080808080;

constexpr bool is_space(std::uint8_t byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

// High bit of each byte that is zero, exact up to the first one.
constexpr std::uint64_t zero_bytes(std::uint64_t word) {
  return (word - kOnes) & ~word & kHighBits;
}

// Copies the inside of a string up to a quote, a backslash or a newline. Returns how many bytes.
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

std::optional<JsonArrayError> JsonArray::feed(std::span<const std::uint8_t> chunk,
                                              Buffer<std::uint8_t>& buffer) {
  if (error_) return error_;
  buffer.reserve(buffer.size() + chunk.size());
  std::uint8_t* out = buffer.data() + buffer.size();
  std::size_t i = 0;
  const auto error = [&](const char* reason) {
    error_ = JsonArrayError{reason, position_ + i};
    return error_;
  };
  while (i < chunk.size()) {
    const std::uint8_t byte = chunk[i];
    switch (state_) {
      case State::kBefore:
        if (byte == '[') {
          state_ = State::kFirst;
        } else if (!is_space(byte)) {
          return error("expected '['");
        }
        break;
      case State::kFirst:
      case State::kNext:
        if (is_space(byte)) break;
        if (byte == ']' && state_ == State::kFirst) {
          state_ = State::kAfter;
          break;
        }
        if (byte == ',' || byte == ']') return error("expected an element");
        state_ = State::kElement;
        continue;
      case State::kElement:
        if (depth_ == 0 && (byte == ',' || byte == ']')) {
          *out++ = '\n';
          state_ = byte == ',' ? State::kNext : State::kAfter;
          break;
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
        break;
      case State::kString: {
        const std::size_t plain = copy_plain(chunk.data() + i, chunk.size() - i, out);
        out += plain;
        i += plain;
        if (i == chunk.size()) continue;
        if (chunk[i] == '"') {
          state_ = State::kElement;
        } else if (chunk[i] == '\\') {
          state_ = State::kEscape;
        }
        *out++ = chunk[i] == '\n' ? std::uint8_t{'\r'} : chunk[i];
        break;
      }
      case State::kEscape:
        state_ = State::kString;
        *out++ = byte == '\n' ? std::uint8_t{'\r'} : byte;
        break;
      case State::kAfter:
        if (!is_space(byte)) return error("expected nothing after the array");
        break;
    }
    ++i;
  }
  position_ += chunk.size();
  buffer.resize(static_cast<std::size_t>(out - buffer.data()));
  return std::nullopt;
}

}  // namespace tokpack

#include "core/json/json_columns.hpp"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <version>
#ifndef __cpp_lib_to_chars
#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif
#endif

#include "core/json/json_strings.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

constexpr std::int64_t kMostStringBytes = std::numeric_limits<std::int32_t>::max();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Whether a text is a number as in RFC 8259, int64 without and float64 with a fraction or exponent.
ColumnKind number_kind(std::string_view text) {
  std::size_t i = text.starts_with('-') ? 1 : 0;
  const auto digits = [&] {
    const std::size_t begin = i;
    while (i < text.size() && is_digit(text[i])) ++i;
    return i != begin;
  };
  const std::size_t first = i;
  if (!digits() || (text[first] == '0' && i - first > 1)) return ColumnKind::mixed;
  if (i == text.size()) return ColumnKind::int64;
  if (text[i] == '.') {
    ++i;
    if (!digits()) return ColumnKind::mixed;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (!digits()) return ColumnKind::mixed;
  }
  return i == text.size() ? ColumnKind::float64 : ColumnKind::mixed;
}

template <class Number>
bool parse_number(std::string_view text, Number* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

#ifndef __cpp_lib_to_chars  // in libc++ before version 20, as on macOS, it reads integers only
template <>
bool parse_number(std::string_view text, double* value) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string copy(text);
  char* end = nullptr;
  errno = 0;
  *value = strtod_l(copy.c_str(), &end, plain);
  const bool in_range = errno == 0 || (*value != 0 && std::isfinite(*value));  // or subnormal
  return in_range && end == copy.c_str() + copy.size();
}
#endif

class Column {
 public:
  Column(std::span<const std::uint8_t> data, std::span<const std::int64_t> spans,
         ColumnOutput& output)
      : data_(data), spans_(spans), output_(output), size_(spans.size() / 2) {}

  // Finds the nulls, and returns the kind of the first other value.
  ColumnKind find_nulls() {
    ColumnKind kind = ColumnKind::null;
    output_.validity.resize((size_ + 7) / 8);
    if (size_ != 0) std::memset(output_.validity.data(), 0, output_.validity.size());
    for (std::size_t i = 0; i < size_; ++i) {
      const std::string_view value = text(i);
      if (value.empty() || value == "null") {
        ++output_.nulls;
        continue;
      }
      output_.validity[i / 8] |= static_cast<std::uint8_t>(1 << i % 8);
      if (kind == ColumnKind::null) kind = kind_of(value);
    }
    return kind;
  }

  bool read_booleans() {
    output_.data.resize((size_ + 7) / 8);
    std::memset(output_.data.data(), 0, output_.data.size());
    for (std::size_t i = 0; i < size_; ++i) {
      if (text(i) == "true") {
        output_.data[i / 8] |= static_cast<std::uint8_t>(1 << i % 8);
      } else if (is_valid(i) && text(i) != "false") {
        return false;
      }
    }
    return true;
  }

  template <class Number>
  bool read_numbers(ColumnKind kind) {
    output_.data.resize(size_ * sizeof(Number));
    for (std::size_t i = 0; i < size_; ++i) {
      Number value{};
      if (is_valid(i) && (number_kind(text(i)) != kind || !parse_number(text(i), &value))) {
        return false;
      }
      std::memcpy(output_.data.data() + i * sizeof(Number), &value, sizeof(Number));
    }
    return true;
  }

  bool read_strings(Level level) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < size_; ++i) bytes += is_valid(i) ? length(i) : 0;
    if (bytes > kMostStringBytes) return false;
    output_.data.resize(static_cast<std::size_t>(bytes) + kStringSlack);
    output_.offsets.resize(size_ + 1);
    const StringKernels& strings = string_kernels(level);
    std::uint8_t* const begin = output_.data.data();
    std::uint8_t* out = begin;
    bool high = false;
    for (std::size_t i = 0; i < size_; ++i) {
      output_.offsets[i] = static_cast<std::int32_t>(out - begin);
      if (!is_valid(i)) continue;
      const std::uint8_t* const in = data_.data() + spans_[2 * i];
      const std::uint8_t* const end = data_.data() + spans_[2 * i + 1];
      if (*in != '"' || strings.copy(in + 1, end, &out, &high) != end) return false;
    }
    const auto written = static_cast<std::size_t>(out - begin);
    output_.offsets[size_] = static_cast<std::int32_t>(written);
    output_.data.resize(written);
    // Arrow assumes UTF-8, and callers may pass bytes that nobody has checked.
    return !high || all_valid(level);
  }

 private:
  std::int64_t length(std::size_t i) const { return spans_[2 * i + 1] - spans_[2 * i]; }
  std::string_view text(std::size_t i) const {
    return {reinterpret_cast<const char*>(data_.data()) + spans_[2 * i],
            static_cast<std::size_t>(length(i))};
  }
  bool is_valid(std::size_t i) const { return (output_.validity[i / 8] >> i % 8 & 1) != 0; }

  static ColumnKind kind_of(std::string_view text) {
    if (text.starts_with('"')) return ColumnKind::string;
    if (text == "true" || text == "false") return ColumnKind::boolean;
    return number_kind(text);
  }

  bool all_valid(Level level) const {
    const Utf8Check valid_utf8 = utf8_check(level);
    for (std::size_t i = 0; i < size_; ++i) {
      const auto begin = static_cast<std::size_t>(output_.offsets[i]);
      const auto end = static_cast<std::size_t>(output_.offsets[i + 1]);
      if (!valid_utf8(output_.data.data() + begin, end - begin)) return false;
    }
    return true;
  }

  std::span<const std::uint8_t> data_;
  std::span<const std::int64_t> spans_;
  ColumnOutput& output_;
  std::size_t size_;
};

}  // namespace

ColumnKind read_json_column(std::span<const std::uint8_t> data, std::span<const std::int64_t> spans,
                            Level level, ColumnOutput& output) {
  Column column(data, spans, output);
  const ColumnKind kind = column.find_nulls();
  bool is_read = true;
  if (kind == ColumnKind::boolean) is_read = column.read_booleans();
  if (kind == ColumnKind::int64) is_read = column.read_numbers<std::int64_t>(kind);
  if (kind == ColumnKind::float64) is_read = column.read_numbers<double>(kind);
  if (kind == ColumnKind::string) is_read = column.read_strings(level);
  return is_read ? kind : ColumnKind::mixed;
}

}  // namespace tokpack

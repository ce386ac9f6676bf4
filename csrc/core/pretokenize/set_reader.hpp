// Reading an expression's characters and sets of characters.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "core/text/code_points.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {

// Where the reading of an expression stands. What is not understood throws std::invalid_argument.
class SetReader {
 protected:
  // REQUIRES: valid UTF-8.
  explicit SetReader(std::string_view text) : text_(text) {}

  [[noreturn]] static void refuse(const std::string& what) { throw std::invalid_argument(what); }

  bool done() const { return at_ == text_.size(); }
  bool sees(std::string_view next) const { return text_.substr(at_).starts_with(next); }
  bool take(std::string_view next) {
    if (!sees(next)) return false;
    at_ += next.size();
    return true;
  }
  std::uint32_t take_character() {
    if (done()) refuse("an unfinished expression");
    const CodePoint c = decode_utf8(reinterpret_cast<const std::uint8_t*>(text_.data()) + at_);
    at_ += c.size;
    return c.value;
  }

  void enter() {
    if (++depth_ > kDeepest) refuse("too many groups in groups");
  }
  void leave() { --depth_; }

  // \d, \s, \p{Lu} and so on, behind the backslash.
  std::optional<CodePoints> class_escape() {
    if (done()) return std::nullopt;
    const char letter = text_[at_];
    std::optional<CodePoints> found;
    switch (letter | 0x20) {
      case 'd':
        found = CodePoints::decimal_digits();
        break;
      case 's':
        found = CodePoints::white_space();
        break;
      case 'w':
        found = CodePoints::words();
        break;
      case 'h':
        found = CodePoints('0', '9') | CodePoints('A', 'F') | CodePoints('a', 'f');
        break;
      case 'p':
        return property();
      default:
        return std::nullopt;
    }
    if (any_case_ && (letter | 0x20) == 'w') refuse("\\w of any case");
    ++at_;
    return letter < 'a' ? ~*found : *found;
  }

  CodePoints property() {
    if (any_case_) refuse("\\p of any case");
    bool negated = take("P");
    if (!negated) take("p");
    if (!take("{")) refuse("\\p without a name in braces");
    if (take("^")) negated = !negated;
    const std::size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) refuse("\\p without a name in braces");
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end + 1;
    const auto found = CodePoints::named(name);
    if (!found) refuse("\\p{" + std::string(name) + "}");
    return negated ? ~*found : *found;
  }

  std::uint32_t character_escape() {
    const std::uint32_t c = take_character();
    constexpr std::pair<char, char> kControls[] = {{'t', '\t'}, {'n', '\n'}, {'r', '\r'},
                                                   {'f', '\f'}, {'v', '\v'}, {'a', '\a'}};
    for (const auto& [letter, control] : kControls) {
      if (c == static_cast<unsigned char>(letter)) return static_cast<unsigned char>(control);
    }
    if (c == 'x') return take("{") ? hexadecimal(1, 8, true) : hexadecimal(1, 2, false);
    if (c == 'u') return hexadecimal(4, 4, false);
    const std::uint32_t lower = c | 0x20;
    if ((lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c >= 0x80) {
      refuse("\\" + (c < 0x80 ? std::string(1, static_cast<char>(c)) : "and a character"));
    }
    return c;
  }

  std::uint32_t hexadecimal(unsigned least, unsigned most, bool braced) {
    std::uint32_t value = 0;
    unsigned count = 0;
    for (; count < most && !done(); ++count) {
      const char c = text_[at_];
      const char lower = static_cast<char>(c | 0x20);
      const int digit = c >= '0' && c <= '9'           ? c - '0'
                        : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                       : -1;
      if (digit < 0) break;
      value = value << 4 | static_cast<std::uint32_t>(digit);
      ++at_;
    }
    if (count < least || (braced && !take("}")) || value >= CodePoints::kLimit ||
        (!braced && most == 2 && value >= 0x80)) {
      refuse("a character by its number");
    }
    return value;
  }

  // A character of the text, in any case if that is asked for. Two letters that are one character
  // in another case, such as ss, are not understood.
  CodePoints literal(std::uint32_t c) {
    if (!any_case_) return {c, c};
    const std::uint32_t lower = c | 0x20;
    const bool letter = lower >= 'a' && lower <= 'z' && c < 0x80;
    if (!letter && c >= 0x80) refuse("a character beyond ASCII of any case");
    const std::uint32_t before = std::exchange(before_, letter ? lower : 0);
    if ((before == 's' && (lower == 's' || lower == 't')) ||
        (before == 'f' && (lower == 'f' || lower == 'i' || lower == 'l'))) {
      refuse("letters of any case that may be one");
    }
    return letter ? both_cases(lower) : CodePoints(c, c);
  }

  // U+017F is another s, U+212A another k.
  static CodePoints both_cases(std::uint32_t lower) {
    CodePoints set = CodePoints(lower, lower) | CodePoints(lower - 0x20, lower - 0x20);
    if (lower == 's') set = set | CodePoints(0x17F, 0x17F);
    if (lower == 'k') set = set | CodePoints(0x212A, 0x212A);
    return set;
  }

  // Behind an opening bracket, to its closing one.
  CodePoints set() {
    enter();
    const bool negated = take("^");
    if (sees("]")) refuse("an empty set");
    CodePoints all = CodePoints::all(), some;
    while (!take("]")) {
      if (take("&&")) {
        all = all & std::exchange(some, {});
      } else {
        some = some | member();
      }
    }
    leave();
    if (any_case_ && negated) refuse("a negated set of any case");
    all = all & some;
    return negated ? ~all : all;
  }

  CodePoints member() {
    if (take("[")) {
      if (take(":")) refuse("a set [:" + std::string(text_.substr(at_, 5)));
      const CodePoints inner = set();
      if (inner.empty()) refuse("an empty set in a set");  // Oniguruma makes another one of it
      return inner;
    }
    const bool escaped = take("\\");
    if (escaped) {
      const bool negated = !done() && text_[at_] < 'a';
      if (const auto found = class_escape()) {
        if (any_case_ && negated) refuse("a negated set of any case");
        return inside(*found);
      }
      if (sees("b")) refuse("\\b in a set");
    }
    const std::uint32_t first = escaped ? character_escape() : take_character();
    // A hyphen at the end of a set is one.
    if (!sees("-") || text_.substr(at_ + 1).starts_with("]")) return in_set(first, first);
    take("-");
    if (sees("[") || sees("&&")) refuse("a range that ends with a set");
    if (take("\\")) {
      if (class_escape()) refuse("a range that ends with a set");
      return in_set(first, character_escape());
    }
    return in_set(first, take_character());
  }

  // What a class has inside of a set. Outside of sets Oniguruma looks word characters below 256 up
  // in a table of its own, which has six numbers more.
  static CodePoints inside(const CodePoints& found) {
    static const CodePoints words = CodePoints::words(), others = ~words;
    static const CodePoints numbers({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}});
    if (found == words) return words & ~numbers;
    return found == others ? others | numbers : found;
  }

  CodePoints in_set(std::uint32_t first, std::uint32_t last) const {
    if (first > last) refuse("a range whose end is before its begin");
    if (!any_case_) return {first, last};
    if (first >= 0x80 || last >= 0x80) refuse("a character beyond ASCII of any case");
    CodePoints found(first, last);
    for (std::uint32_t c = first; c <= last; ++c) {
      const std::uint32_t lower = c | 0x20;
      if (lower >= 'a' && lower <= 'z') found = found | both_cases(lower);
    }
    return found;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  unsigned depth_ = 0;
  bool any_case_ = false;
  std::uint32_t before_ = 0;  // the letter of any case right before

 private:
  static constexpr unsigned kDeepest = 100;  // groups in groups
};

}  // namespace tokpack

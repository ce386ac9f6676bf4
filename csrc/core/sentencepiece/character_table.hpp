// What a function makes of each character, worked out when the character is first met.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tokpack {

class CharacterTable {
 public:
  // What becomes of a character; nothing where that depends on its neighbours.
  using Change = std::function<std::optional<std::string>(std::string_view character)>;

  explicit CharacterTable(Change change);

  // Sets *out to what becomes of a text; false when that depends on more than single characters.
  // REQUIRES: valid UTF-8, and no view of *out.
  bool change(std::string_view text, std::string* out);

 private:
  static constexpr unsigned kPageBits = 8;
  static constexpr std::size_t kSlack = 16;  // bytes that are copied at once

  enum class Kind : std::uint8_t { kUnknown, kKept, kChanged, kDependent };
  struct Entry {
    std::uint32_t begin;  // in texts_, of what a changed character becomes
    std::uint16_t size;
    Kind kind;
  };
  using Page = std::array<Entry, 1u << kPageBits>;

  const Entry& entry(std::uint32_t code_point, std::string_view character);

  Change change_;
  std::array<std::uint8_t, 256> ascii_{};       // the byte that an ASCII character becomes,
  std::array<std::uint8_t, 256> ascii_size_{};  // or none;
  std::array<bool, 256> is_simple_{};           // what is not one of these has an entry
  std::vector<std::unique_ptr<Page>> pages_;
  std::string texts_;  // and kSlack bytes
};

}  // namespace tokpack

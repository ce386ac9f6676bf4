// Unicode's normal forms, as the Hugging Face library computes them: its tables are Unicode 9.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/text/places.hpp"

namespace tokpack {

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// The form with this name, such as "NFC".
std::optional<NormalForm> normal_form_by_name(std::string_view name);

// Whether Unicode's quick check proves that the text is in a normal form; without this proof it may
// still be in it. Skips Latin text many bytes at a time. REQUIRES: text is valid UTF-8.
bool is_normal_quick(NormalForm form, std::string_view text);

// Sets `out` to a normal form of the text, and tells the trail where each character comes from.
// REQUIRES: text is valid UTF-8, and not a view of `out`.
void normalize(NormalForm form, std::string_view text, std::string& out, Trail* trail = nullptr);

// Canonical combining class; 0: a starter.
std::uint8_t combining_class(std::uint32_t code_point);

}  // namespace tokpack

// Unicode Normalization Form C, as the Hugging Face library computes it: its tables are Unicode 9.
#pragma once

#include <string>
#include <string_view>

namespace tokpack {

inline constexpr std::string_view kNfcUnicodeVersion = "9.0.0";

// Whether Unicode's quick check proves that the text is in NFC; where it does not the text may
// still be. Skips text below U+0300 many bytes at a time. REQUIRES: text is valid UTF-8.
bool is_nfc_quick(std::string_view text);

// Sets `out` to the NFC of the text. REQUIRES: text is valid UTF-8, and no view of `out`.
void nfc(std::string_view text, std::string& out);

}  // namespace tokpack

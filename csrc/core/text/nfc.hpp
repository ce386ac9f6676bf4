// Unicode Normalization Form C, as the Hugging Face library computes it: its tables are Unicode 9.
#pragma once

#include <string>
#include <string_view>

namespace tokpack {

inline constexpr std::string_view kNfcUnicodeVersion = "9.0.0";

// True when a quick check proves that text is in NFC already; false when it may not be. Text below
// U+0300 is passed over many bytes at a time. REQUIRES: text is valid UTF-8.
bool is_nfc_quick(std::string_view text);

// Replaces out by the NFC of text. REQUIRES: text is valid UTF-8.
void nfc(std::string_view text, std::string& out);

}  // namespace tokpack

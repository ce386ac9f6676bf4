// What the scanners cannot tell from masks of 64 bytes: here one character after the other. Rare,
// so that there is one version for all processors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/pretokenize/scan.hpp"

namespace tokpack::scan_fallback {

// Whether a line end follows the run of other whitespace that goes on at text[pos].
bool run_ends_line(const Scan& scan, std::size_t pos);

// Whether the run of upper case that goes on at text[pos] is the end of its word.
bool upper_ends_word(const Scan& scan, std::size_t pos);

// Size of the contraction at text[pos], where an apostrophe is; 0 if there is none. U+017F is an s
// in another case.
unsigned contraction(const Scan& scan, std::size_t pos);

// Whether the character at text[pos] is a letter without case, or a mark.
bool is_uncased(const Scan& scan, std::size_t pos);

// For words with case: sets scan.settled_* to the matcher's pretokens from text[from], where one
// begins, to a place behind text[past] from which on the scanner is right again; or to 1024 of
// them, with settled_open set. REQUIRES: valid UTF-8.
void settle(Scan& scan, std::size_t from, std::size_t past);

// The numbers of the pre-tokenizer Digits that are not in \p{N}: Unicode 17 has added them.
inline bool is_new_number(std::uint32_t c) {
  return (c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6);
}

// The second Split of DeepSeek-V3: [一-龥぀-ゟ゠-ヿ]+
inline bool is_cjk(std::uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

}  // namespace tokpack::scan_fallback

// What the scanners cannot tell from masks of 64 bytes: here one character after the other. Rare,
// so that there is one version for all processors.
#pragma once

#include <cstddef>

#include "core/pretokenize/scan.hpp"

namespace tokpack::scan_fallback {

// Whether a line end follows the run of other whitespace that goes on at text[pos].
bool run_ends_line(const Scan& scan, std::size_t pos);

// Whether the run of upper case that goes on at text[pos] is the end of its word.
bool upper_ends_word(const Scan& scan, std::size_t pos);

// For kO200k (with contractions) and kTekken (without): sets scan.settled_* to the reference's
// pretokens from text[from], where one begins, to a place behind text[past] from which on the
// scanner is right again; or to 1024 of them, with settled_open set. REQUIRES: valid UTF-8.
void settle(Scan& scan, bool contractions, std::size_t from, std::size_t past);

}  // namespace tokpack::scan_fallback

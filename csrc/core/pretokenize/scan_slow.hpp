// What the scanners cannot tell from masks of 64 bytes, one character after the other. Compiled for
// any processor.
#pragma once

#include <cstddef>

#include "core/pretokenize/scan.hpp"

namespace tokpack::scan_slow {

// Whether a run of whitespace other than line ends, that goes on at text[pos], ends at a line end.
bool run_ends_line(const Scan& scan, std::size_t pos);

// Whether a run of upper case that goes on at text[pos] ends its word.
bool upper_ends_word(const Scan& scan, std::size_t pos);

// For kO200k (with contractions) and kTekken (without): asks the plain pretokenizer for the
// pretokens from text[from], where one begins, until behind text[past], where the scanner is sure
// to be right again; or for many, and then the answer is left open. REQUIRES: valid UTF-8.
void settle(Scan& scan, bool contractions, std::size_t from, std::size_t past);

}  // namespace tokpack::scan_slow

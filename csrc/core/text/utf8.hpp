// UTF-8 validation, as Python's strict decoder sees it: no overlong forms, no surrogates, at most
// U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/cpu.hpp"

namespace tokpack {

using Utf8Check = bool (*)(const std::uint8_t* data, std::size_t size);

// The validator for a level that this machine has.
Utf8Check utf8_check(Level level);

}  // namespace tokpack

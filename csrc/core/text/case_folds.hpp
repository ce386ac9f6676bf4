// Letters without their case, of text in Unicode's form NFKD.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tokpack {

// Ascending: each is a letter, shifted by 42, with the one or two letters that it becomes, the
// first shifted by 21.
extern const std::uint64_t kCaseFolds[];
extern const std::size_t kCaseFoldCount;

}  // namespace tokpack

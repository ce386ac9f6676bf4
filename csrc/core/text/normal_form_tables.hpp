// What decomposition and composition need to know of every code point, in Unicode 9.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tokpack::normal_form_tables {

// Two levels, as in unicode.hpp. A byte holds the rank of the combining class in bits 0 to 5, and
// NFC_Quick_Check above: 0 yes, 1 maybe, 2 no. So 0 is a starter that composes with nothing before.
inline constexpr unsigned kBlockBits = 7;
inline constexpr unsigned kCheckShift = 6;
extern const std::uint8_t kIndex[0x110000 >> kBlockBits];
extern const std::uint8_t kBlocks[];
extern const std::uint8_t kCombiningClasses[];  // by rank

// The same of the other forms: NFKC_Quick_Check in bits 0 and 1, whether there is a canonical
// decomposition in bit 2, and whether another one for compatibility in bit 3.
extern const std::uint8_t kOtherIndex[0x110000 >> kBlockBits];
extern const std::uint8_t kOtherBlocks[];

// Sorted code points that decompose (Hangul syllables aside), and where in `text` the full
// decomposition of each begins; one begin more than code points.
struct Decompositions {
  std::size_t count;
  const std::uint32_t* from;
  const std::uint16_t* begins;
  const std::uint32_t* text;
};
extern const Decompositions kCanonical;
extern const Decompositions kCompatible;  // those that are not the canonical ones

// Sorted pairs that compose, first << 32 | second, and their composites.
extern const std::size_t kCompositionCount;
extern const std::uint64_t kComposable[];
extern const std::uint32_t kCompositions[];

}  // namespace tokpack::normal_form_tables

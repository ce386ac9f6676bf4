// Extended grapheme clusters (Unicode 17, UAX 29): what a reader takes for one character.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tokpack {

// Values of the property Grapheme_Cluster_Break, and two more classes that the rules need:
// consonants that a linker joins (Indic_Conjunct_Break), and Extended_Pictographic.
enum class ClusterClass : std::uint8_t {
  kAny,
  kCr,
  kLf,
  kControl,
  kExtend,
  kZwj,
  kRegional,
  kPrepend,
  kSpacingMark,
  kL,
  kV,
  kT,
  kLv,
  kLvt,
  kConsonant,
  kPictograph,
};

namespace grapheme_tables {
inline constexpr unsigned kBlockBits = 7;
inline constexpr std::uint8_t kClassBits = 0x0F;
inline constexpr std::uint8_t kLinker = 0x10;         // joins consonants
inline constexpr std::uint8_t kBetweenLinked = 0x20;  // may stand between them; linkers too
extern const std::uint8_t kIndex[0x110000 >> kBlockBits];
extern const std::uint8_t kBlocks[];
}  // namespace grapheme_tables

// REQUIRES: code_point < 0x110000.
inline ClusterClass cluster_class(std::uint32_t code_point) {
  using namespace grapheme_tables;
  const std::uint32_t block = kIndex[code_point >> kBlockBits];
  return static_cast<ClusterClass>(
      kBlocks[(block << kBlockBits) + (code_point & ((1u << kBlockBits) - 1))] & kClassBits);
}

// The bytes of the first cluster of text[0, size).
// REQUIRES: size > 0; the text is valid UTF-8 and begins where a cluster begins.
std::size_t grapheme_size(const std::uint8_t* text, std::size_t size);

}  // namespace tokpack

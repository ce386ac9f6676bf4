// The scanners of all patterns. Included by each instruction set's file inside its own namespace,
// after its struct `Isa`, which scan_blocks.inc.hpp describes.

// clang-format off: the order of these matters
#include "core/pretokenize/scan_blocks.inc.hpp"
#include "core/pretokenize/scan_gpt2.inc.hpp"
#include "core/pretokenize/scan_white_space.inc.hpp"
#include "core/pretokenize/scan_cl100k.inc.hpp"
#include "core/pretokenize/scan_deepseek.inc.hpp"
// clang-format on

template <Pattern kPattern>
std::size_t scan_pattern(Scan& scan, std::uint32_t* starts) {
  constexpr ScanRules kRules = scan_rules(kPattern);
  if (!scan.started) {
    scan.started = true;
    scan.current = classify<kRules>(scan, 0);
  }
  std::size_t count = 0;
  ScanBlock current = scan.current;
  while (scan.begin < scan.size && count < kWindow) {
    const ScanBlock next = classify<kRules>(scan, scan.begin + 64);
    std::uint64_t mask = cut<kRules>(scan, current, next);
    const std::size_t left = scan.size - scan.begin;
    if (left < 64) mask &= (std::uint64_t{1} << left) - 1;
    count += Isa::flatten(mask, static_cast<std::uint32_t>(scan.begin), starts + count);
    current = next;
    scan.begin += 64;
  }
  scan.current = current;
  return count;
}

inline Scanner scanner_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::kGpt2:
      return scan_pattern<Pattern::kGpt2>;
    case Pattern::kDigitsGpt2:
      return scan_pattern<Pattern::kDigitsGpt2>;
    case Pattern::kLlama3:
      return scan_pattern<Pattern::kLlama3>;
    case Pattern::kQwen2:
      return scan_pattern<Pattern::kQwen2>;
    case Pattern::kQwen35:
      return scan_pattern<Pattern::kQwen35>;
    case Pattern::kO200k:
      return scan_pattern<Pattern::kO200k>;
    case Pattern::kTekken:
      return scan_pattern<Pattern::kTekken>;
    case Pattern::kDeepseekV3:
      return scan_pattern<Pattern::kDeepseekV3>;
    case Pattern::kNone:
      break;
  }
  return nullptr;
}

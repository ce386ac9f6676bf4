// The scanners of all shapes. Included by each instruction set's file inside its own namespace,
// after its struct `Isa`, which scan_blocks.inc.hpp describes.

// clang-format off: the order of these matters
#include "core/pretokenize/scan_blocks.inc.hpp"
#include "core/pretokenize/scan_gpt2.inc.hpp"
#include "core/pretokenize/scan_white_space.inc.hpp"
#include "core/pretokenize/scan_cl100k.inc.hpp"
#include "core/pretokenize/scan_deepseek.inc.hpp"
// clang-format on

template <ScanShape kShape>
std::size_t scan_shape(Scan& scan, std::uint32_t* starts) {
  if (!scan.started) {
    scan.started = true;
    scan.current = classify<kShape>(scan, 0);
  }
  std::size_t count = 0;
  ScanBlock current = scan.current;
  while (scan.begin < scan.size && count < kWindow) {
    const ScanBlock next = classify<kShape>(scan, scan.begin + 64);
    std::uint64_t mask = cut<kShape>(scan, current, next);
    const std::size_t left = scan.size - scan.begin;
    if (left < 64) mask &= (std::uint64_t{1} << left) - 1;
    count += Isa::flatten(mask, static_cast<std::uint32_t>(scan.begin), starts + count);
    current = next;
    scan.begin += 64;
  }
  scan.current = current;
  return count;
}

inline Scanner scanner_of(const ScanShape& shape) {
  using Family = ScanShape::Family;
  if (shape.family == Family::kDeepseek) {
    return scan_shape<{.family = Family::kDeepseek, .marks = true, .cut_first = true}>;
  }
  if (shape.family == Family::kCl100k) {
    if (shape.cased) {
      return scan_shape<{.family = Family::kCl100k, .marks = true, .cased = true}>;
    }
    return shape.marks ? scan_shape<{.family = Family::kCl100k, .marks = true}>
                       : scan_shape<{.family = Family::kCl100k}>;
  }
  return shape.cut_first ? scan_shape<{.family = Family::kGpt2, .cut_first = true}>
                         : scan_shape<{.family = Family::kGpt2}>;
}

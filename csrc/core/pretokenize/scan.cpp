#include "core/pretokenize/scan.hpp"

#include "core/pretokenize/scan_rules.hpp"

namespace tokpack {

#if defined(__x86_64__)
Scanner scanner_avx2(Pattern pattern);
Scanner scanner_avx512(Pattern pattern);
#elif defined(__AARCH64EL__)
Scanner scanner_neon(Pattern pattern);
#endif
Scanner scanner_portable(Pattern pattern);

Scanner scanner([[maybe_unused]] Level level, Pattern pattern) {
#if defined(__x86_64__)
  if (level == Level::kAvx512) return scanner_avx512(pattern);
  if (level == Level::kAvx2) return scanner_avx2(pattern);
#elif defined(__AARCH64EL__)
  if (level == Level::kNeon) return scanner_neon(pattern);
#endif
  return scanner_portable(pattern);
}

bool needs_utf8(Pattern pattern) { return pattern == Pattern::kNone || scan_rules(pattern).cased; }

std::optional<std::vector<std::int64_t>> scan_ends(Level level, Pattern pattern,
                                                   std::span<const std::uint8_t> text) {
  const Scanner scan_window = scanner(level, pattern);
  if (scan_window == nullptr) return std::nullopt;
  std::vector<std::int64_t> ends;
  Scan scan{};
  scan.text = text.data();
  scan.size = text.size();
  std::uint32_t starts[kMaxWindow];
  while (scan.begin < scan.size) {
    const std::size_t count = scan_window(scan, starts);
    ends.insert(ends.end(), starts, starts + count);
  }
  if (text.empty()) return ends;
  ends.erase(ends.begin());  // a pretoken ends where the next one starts
  ends.push_back(static_cast<std::int64_t>(text.size()));
  return ends;
}

}  // namespace tokpack

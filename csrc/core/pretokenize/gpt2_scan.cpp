#include "core/pretokenize/gpt2_scan.hpp"

namespace tokpack {

#if defined(__x86_64__)
std::size_t gpt2_scan_avx2(Gpt2Scan& scan, std::uint32_t* starts);
std::size_t gpt2_scan_avx512(Gpt2Scan& scan, std::uint32_t* starts);
#endif

Gpt2Scanner gpt2_scanner([[maybe_unused]] Level level) {
#if defined(__x86_64__)
  if (level == Level::kAvx512) return gpt2_scan_avx512;
  if (level == Level::kAvx2) return gpt2_scan_avx2;
#endif
  return nullptr;
}

std::optional<std::vector<std::int64_t>> scan_ends(Level level, Pattern pattern,
                                                   std::span<const std::uint8_t> text) {
  const Gpt2Scanner scanner = gpt2_scanner(level);
  if (pattern != Pattern::kGpt2 || scanner == nullptr) return std::nullopt;
  std::vector<std::int64_t> ends;
  Gpt2Scan scan{};
  scan.text = text.data();
  scan.size = text.size();
  std::uint32_t starts[kMaxWindow];
  while (scan.begin < scan.size) {
    const std::size_t count = scanner(scan, starts);
    ends.insert(ends.end(), starts, starts + count);
  }
  if (text.empty()) return ends;
  ends.erase(ends.begin());  // a pretoken ends where the next one starts
  ends.push_back(static_cast<std::int64_t>(text.size()));
  return ends;
}

}  // namespace tokpack

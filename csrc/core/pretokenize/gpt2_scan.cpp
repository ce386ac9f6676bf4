#include "core/bpe/bpe_kernel.hpp"

namespace tokpack {

const Kernel& kernel(Level level) {
#if defined(__x86_64__)
  if (level == Level::kAvx512) return avx512_kernel();
  if (level == Level::kAvx2) return avx2_kernel();
#endif
  return scalar_kernel();
}

std::optional<std::vector<std::int64_t>> scan_ends(Level level, Pattern pattern,
                                                   std::span<const std::uint8_t> text) {
  const Kernel& chosen = kernel(level);
  if (pattern != Pattern::kGpt2 || chosen.scan == nullptr) return std::nullopt;
  std::vector<std::int64_t> ends;
  Gpt2Scan scan{};
  scan.text = text.data();
  scan.size = text.size();
  std::uint32_t starts[kMaxWindow];
  while (scan.begin < scan.size) {
    const std::size_t count = chosen.scan(scan, starts);
    ends.insert(ends.end(), starts, starts + count);
  }
  if (text.empty()) return ends;
  ends.erase(ends.begin());  // a pretoken ends where the next one starts
  ends.push_back(static_cast<std::int64_t>(text.size()));
  return ends;
}

}  // namespace tokpack

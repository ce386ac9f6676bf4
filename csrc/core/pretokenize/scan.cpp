#include "core/pretokenize/scan.hpp"

#include <utility>

namespace tokpack {

#if defined(__x86_64__)
Scanner scanner_avx2(const ScanShape& shape);
Scanner scanner_avx512(const ScanShape& shape);
#elif defined(__AARCH64EL__)
Scanner scanner_neon(const ScanShape& shape);
#endif
Scanner scanner_portable(const ScanShape& shape);

Scanner scanner([[maybe_unused]] Level level, const ScanShape& shape) {
#if defined(__x86_64__)
  if (level == Level::kAvx512) return scanner_avx512(shape);
  if (level == Level::kAvx2) return scanner_avx2(shape);
#elif defined(__AARCH64EL__)
  if (level == Level::kNeon) return scanner_neon(shape);
#endif
  return scanner_portable(shape);
}

Cutter::Cutter(std::span<const Step> steps, std::optional<ScanRules> rules, Level level,
               std::size_t longest_run)
    : pieces_(steps) {
  if (!rules) return;
  scanner_ = scanner(level, rules->shape);
  scan_.rules = *rules;
  scan_.longest_run = longest_run;
  if (rules->shape.cased) matcher_.emplace(steps[0].automaton);
}

void Cutter::begin(const std::uint8_t* text, std::size_t size) {
  if (scanner_ == nullptr) {
    scan_.begin = last_ = 0;
    scan_.size = size;
    return pieces_.begin(text, size);
  }
  Scan scan{.text = text, .size = size, .rules = scan_.rules, .longest_run = scan_.longest_run};
  scan.settled_starts = std::move(scan_.settled_starts);
  scan_ = std::move(scan);
  if (!matcher_) return;
  matcher_->begin(text, 0, size);
  scan_.matcher = &*matcher_;
}

std::size_t Cutter::next(std::uint32_t* starts) {
  if (scanner_ != nullptr) return scanner_(scan_, starts);
  std::size_t count = 0, end = 0;
  while (count < kWindow && pieces_.next(&end)) {
    starts[count++] = std::exchange(last_, static_cast<std::uint32_t>(end));
  }
  scan_.begin = count < kWindow ? scan_.size : last_;
  return count;
}

std::vector<std::int64_t> ends_of(Cutter cutter, std::span<const std::uint8_t> text) {
  std::vector<std::int64_t> ends;
  std::uint32_t starts[kMaxWindow];
  cutter.begin(text.data(), text.size());
  while (!cutter.done()) {
    const std::size_t count = cutter.next(starts);
    ends.insert(ends.end(), starts, starts + count);
  }
  if (text.empty()) return ends;
  ends.erase(ends.begin());  // a pretoken ends where the next one starts
  ends.push_back(static_cast<std::int64_t>(text.size()));
  return ends;
}

}  // namespace tokpack

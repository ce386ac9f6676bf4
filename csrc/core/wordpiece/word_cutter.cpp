#include "core/wordpiece/word_cutter.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include "core/text/code_points.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

// What one pre-tokenizer does to characters. Runs are cut where `runs` begin and end.
struct StepClasses {
  CodePoints left_out, alone, runs;
};

StepClasses classes_of(const std::string& step) {
  if (step == "BertPreTokenizer") {
    return {CodePoints::white_space(), CodePoints::punctuation(), {}};
  }
  if (step == "Whitespace") return {CodePoints::white_space(), {}, CodePoints::rust_words()};
  if (step == "WhitespaceSplit") return {CodePoints::white_space(), {}, {}};
  if (step == "Punctuation") return {{}, CodePoints::punctuation(), {}};
  if (step == "Digits") return {{}, CodePoints::numeric(), {}};
  if (step == "Digits together") return {{}, {}, CodePoints::numeric()};
  throw std::invalid_argument("pre-tokenizer '" + step + "' is unknown");
}

template <class Do>
void for_each(const CodePoints& points, Do&& what) {
  for (const CodePoints::Range& range : points.ranges()) {
    for (std::uint32_t c = range.first; c <= range.last; ++c) what(c);
  }
}

}  // namespace

WordCutter::WordCutter(std::span<const std::string> steps) {
  if (steps.size() > 6) throw std::invalid_argument("more than 6 pre-tokenizers");
  // A bit says of each step in which of its runs a character is.
  std::vector<std::uint8_t> classes(CodePoints::kLimit, kFirstRun);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepClasses step = classes_of(steps[i]);
    const auto bit = static_cast<std::uint8_t>(2 << i);
    for_each(step.runs, [&](std::uint32_t c) {
      if (classes[c] >= kFirstRun) classes[c] = static_cast<std::uint8_t>(classes[c] + bit);
    });
    for_each(step.alone, [&](std::uint32_t c) {
      if (classes[c] != kLeftOut) classes[c] = kAlone;
    });
    for_each(step.left_out, [&](std::uint32_t c) { classes[c] = kLeftOut; });
  }
  std::map<Page, std::uint16_t> known;
  for (std::size_t begin = 0; begin < classes.size(); begin += std::size_t{1} << kPageBits) {
    Page page;
    std::copy_n(classes.begin() + static_cast<std::ptrdiff_t>(begin), page.size(), page.begin());
    const auto [place, is_new] = known.emplace(page, static_cast<std::uint16_t>(pages_.size()));
    if (is_new) pages_.push_back(page);
    page_of_.push_back(place->second);
  }
}

template <bool kSources>
std::size_t WordCutter::cut(const std::uint8_t* text, std::size_t size, std::size_t* at,
                            Buffer<std::uint8_t>* words, std::uint32_t* starts,
                            std::uint32_t* sources) const {
  words->resize(size - *at);
  const std::uint8_t* ascii = pages_[0].data();
  std::uint8_t* to = words->data();
  std::size_t found = 0, from = *at;
  std::uint32_t count = 0;
  std::uint8_t before = kLeftOut;
  while (from < size) {
    // A byte begins at most one word, so these are not too many. Without branches.
    const std::size_t safe = std::min(size, from + (kWindow - found));
    for (; from < safe && text[from] < 0x80; ++from) {
      const std::uint8_t here = ascii[text[from]];
      const unsigned is_kept = here != kLeftOut;
      starts[found] = count;
      if constexpr (kSources) sources[found] = static_cast<std::uint32_t>(from);
      found += is_kept & (unsigned{here != before} | unsigned{here == kAlone});
      to[count] = text[from];
      count += is_kept;
      before = here;
    }
    if (from == size) break;
    const CodePoint c = decode_utf8(text + from);
    const std::uint8_t here = class_of(c.value);
    if (here != kLeftOut) {
      if (here != before || here == kAlone) {
        if (found == kWindow) break;
        if constexpr (kSources) sources[found] = static_cast<std::uint32_t>(from);
        starts[found++] = count;
      }
      std::memcpy(to + count, text + from, c.size);
      count += c.size;
    }
    from += c.size;
    before = here;
  }
  starts[found] = count;
  words->resize(count);
  *at = from;
  return found;
}

template std::size_t WordCutter::cut<false>(const std::uint8_t*, std::size_t, std::size_t*,
                                            Buffer<std::uint8_t>*, std::uint32_t*,
                                            std::uint32_t*) const;
template std::size_t WordCutter::cut<true>(const std::uint8_t*, std::size_t, std::size_t*,
                                           Buffer<std::uint8_t>*, std::uint32_t*,
                                           std::uint32_t*) const;

}  // namespace tokpack

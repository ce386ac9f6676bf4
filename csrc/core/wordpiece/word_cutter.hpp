// Cuts texts into words by the classes of their characters, and leaves out white space.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/pretokenize/scan.hpp"

namespace tokpack {

class WordCutter {
 public:
  // The names of pre-tokenizers of a tokenizer.json, each of which cuts what the one before has
  // left: BertPreTokenizer, Whitespace, WhitespaceSplit, Punctuation, Digits (each a word), and
  // "Digits together". Throws std::invalid_argument for another name, or too many of them.
  explicit WordCutter(std::span<const std::string> steps);

  // Sets *words to the next words of text[*at, size), at most kWindow of them, one after the other,
  // and moves *at behind them. Writes to `starts` where each begins, and the end of the last one;
  // to `sources`, if asked for, where they begin in the text. Returns their number. REQUIRES: valid
  // UTF-8.
  std::size_t cut(const std::uint8_t* text, std::size_t size, std::size_t* at,
                  Buffer<std::uint8_t>* words, std::uint32_t* starts,
                  std::uint32_t* sources = nullptr) const {
    return sources != nullptr ? cut<true>(text, size, at, words, starts, sources)
                              : cut<false>(text, size, at, words, starts, sources);
  }

 private:
  template <bool kSources>
  std::size_t cut(const std::uint8_t* text, std::size_t size, std::size_t* at,
                  Buffer<std::uint8_t>* words, std::uint32_t* starts, std::uint32_t* sources) const;

  static constexpr unsigned kPageBits = 8;

  // 0: left out. 1: each character is a word. Others: a run of one class is a word.
  static constexpr std::uint8_t kLeftOut = 0, kAlone = 1, kFirstRun = 2;
  using Page = std::array<std::uint8_t, 1u << kPageBits>;

  std::uint8_t class_of(std::uint32_t code_point) const {
    return pages_[page_of_[code_point >> kPageBits]][code_point & ((1u << kPageBits) - 1)];
  }

  std::vector<Page> pages_;  // each of them once; the first is that of ASCII
  std::vector<std::uint16_t> page_of_;
};

}  // namespace tokpack

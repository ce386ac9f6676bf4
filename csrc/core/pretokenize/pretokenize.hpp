// Pretokenization: cutting a document into the words that a model encodes independently.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/cpu.hpp"
#include "core/pretokenize/scan_rules.hpp"
#include "core/pretokenize/steps.hpp"

namespace tokpack {

// How a tokenizer cuts text, understood.
struct Pretokenizer {
  // Throws std::invalid_argument with a phrase that says what is not understood.
  explicit Pretokenizer(std::span<const StepText> texts);
  // One of pattern_names(). Throws std::invalid_argument for another name.
  explicit Pretokenizer(std::string_view pattern_name);
  // Words of characters, not of bytes: texts without a ByteLevel.
  static Pretokenizer of_characters(std::span<const StepText> texts);

  std::vector<Step> steps;         // none: a text is one word
  std::optional<ScanRules> rules;  // by which scanners cut as the steps do
  // A text that does not begin with a space gets one in front; where some steps come before, not
  // the text but each of their pieces.
  bool prefixes = false;
  std::size_t steps_before_prefix = 0;
  bool removes = false;  // some text is in no word

  // Whether words are the text in parts, but for a space in front of it.
  bool keeps_text() const { return !removes && steps_before_prefix == 0; }

 private:
  Pretokenizer() = default;
};

// The words of texts in which steps remove something or put spaces in front of pieces, or words get
// a byte more. They are laid out one behind the other.
class LaidWords {
 public:
  // `pretokenizer` lives as long. `suffix`: a byte behind each word.
  LaidWords(const Pretokenizer& pretokenizer, std::optional<std::uint8_t> suffix);

  // REQUIRES: valid UTF-8.
  void begin(const std::uint8_t* text, std::size_t size);

  // Sets *words to the next words of the text, kWindow of them at most. Writes to `starts` where
  // each begins, and the end of the last one. Returns their number, 0 at the end of the text.
  std::size_t next(Buffer<std::uint8_t>* words, std::uint32_t* starts);

 private:
  bool next_word(const std::uint8_t** word, std::size_t* size);

  std::optional<Pieces> outer_;  // by the steps before a space is put in front
  std::optional<Pieces> inner_;  // by the others, if there are such
  std::optional<std::uint8_t> suffix_;
  const std::uint8_t* text_ = nullptr;
  const std::uint8_t* piece_ = nullptr;  // the text, or a piece of outer_ with its space
  std::size_t piece_size_ = 0;
  bool has_piece_ = false;  // words of it are still to come
  Buffer<std::uint8_t> prefixed_;
};

// The end of each pretoken of one text, in bytes, as the scanner of a level finds it; without a
// level step by step. Where words are laid out, the ends are those of LaidWords. REQUIRES: fewer
// than 2^31 bytes, UTF-8.
std::vector<std::int64_t> pretoken_ends(const Pretokenizer& pretokenizer,
                                        std::optional<Level> level,
                                        std::span<const std::uint8_t> text);

// The names of the patterns that users know, such as "llama3", their pre-tokenizers, and the name
// of a pretokenizer that cuts as one of these.
std::vector<std::string_view> pattern_names();
std::optional<std::vector<StepText>> texts_of_pattern(std::string_view name);
std::optional<std::string_view> name_of(const Pretokenizer& pretokenizer);

}  // namespace tokpack

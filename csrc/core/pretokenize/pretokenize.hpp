// Pretokenization: cutting a document into the words that a model encodes independently.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/cpu.hpp"
#include "core/pretokenize/scan_rules.hpp"
#include "core/pretokenize/steps.hpp"
#include "core/text/places.hpp"

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
  std::optional<PieceChange> change;
  bool removes = false;  // some text is in no word

  // Whether texts get a space in front, and no other change.
  bool prefixes() const {
    return change && change->steps_before == 0 && change->space == " " &&
           change->prefix == PrefixScheme::kAlways;
  }
  // Whether words are the text in parts, but for a space in front of it.
  bool keeps_text() const { return !removes && (!change || prefixes()); }

 private:
  Pretokenizer() = default;
  void set(CompiledSteps compiled);
};

// The words of texts in which steps remove something or change pieces, or words get a byte more.
// They are laid out one behind the other.
class LaidWords {
 public:
  // `pretokenizer` lives as long. `suffix`: a byte behind each word.
  LaidWords(const Pretokenizer& pretokenizer, std::optional<std::uint8_t> suffix);

  // `first`: a document begins here. REQUIRES: valid UTF-8.
  void begin(const std::uint8_t* text, std::size_t size, bool first);

  // Sets *words to the next words of the text, kWindow of them at most. Writes to `starts` where
  // each begins, and the end of the last one; to `places`, if asked for, which bytes of the text
  // the bytes of words are from. Returns their number, 0 at the end of the text.
  std::size_t next(Buffer<std::uint8_t>* words, std::uint32_t* starts, Places* places = nullptr);

 private:
  bool next_piece();
  bool next_word(const std::uint8_t** word, std::size_t* size);
  void change(const std::uint8_t* piece, std::size_t size, bool first);

  std::optional<Pieces> outer_;  // by the steps before pieces are changed, if there are such
  std::optional<Pieces> inner_;  // by the others
  std::optional<PieceChange> change_;
  std::optional<std::uint8_t> suffix_;
  const std::uint8_t* text_ = nullptr;
  std::size_t size_ = 0;
  bool first_ = false;
  bool is_whole_ = false;                // the text is a piece that is still to come
  const std::uint8_t* piece_ = nullptr;  // the text, or a piece of outer_, changed
  std::size_t piece_size_ = 0;
  bool has_piece_ = false;  // words of it are still to come
  std::string changed_;
  Places changed_places_;
  bool is_placed_ = false;
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

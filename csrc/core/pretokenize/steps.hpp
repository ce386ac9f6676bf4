// Pre-tokenizers of a tokenizer.json, one after the other: each cuts the pieces of the one before
// it, and sees a piece as a text of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/pretokenize/automaton.hpp"
#include "core/pretokenize/matcher.hpp"

namespace tokpack {

// One pre-tokenizer. `kind` is Digits, Punctuation, UnicodeScripts, Metaspace or ByteLevel, or, of
// a Split, its behavior.
struct StepText {
  std::string kind;
  std::string text;  // of a Split the expression, of Punctuation the behavior, of a ByteLevel
                     // "add_prefix_space" or nothing, of a Metaspace the prefix and what stands for
                     // a space, as in "always \u2581"
  bool flag;         // of a Split invert, of Digits individual_digits, of ByteLevel use_regex, of a
                     // Metaspace split
};

// Where a text is cut at the matches of an expression.
enum class Behavior : std::uint8_t {
  kIsolated,            // matches, and what is between, are pieces
  kContiguous,          // matches without anything between are one piece
  kMergedWithPrevious,  // a match belongs to what is before it
  kMergedWithNext,
  kRemoved,  // what is between matches is pieces
};

struct Step {
  Automaton automaton;
  Behavior behavior = Behavior::kIsolated;
  bool inverted = false;  // what is between matches counts as matches
};

// Which texts get a space in front, unless they begin with one: none, that at the begin of a
// document, or all.
enum class PrefixScheme : std::uint8_t { kNever, kFirst, kAlways };

// Throws std::invalid_argument for a name that is none of never, first, always.
PrefixScheme parse_prefix(std::string_view name);

// What a Metaspace does to each piece, or a ByteLevel that puts spaces in front.
struct PieceChange {
  std::size_t steps_before = 0;  // by which texts are cut into these pieces
  PrefixScheme prefix = PrefixScheme::kAlways;
  std::string space = " ";  // what stands for a space
};

struct CompiledSteps {
  std::vector<Step> steps;  // none where nothing is cut
  std::optional<PieceChange> change;
};

// What these pre-tokenizers are. Throws std::invalid_argument with a phrase that says why they are
// not understood. There must be a ByteLevel if words are of bytes, else none.
CompiledSteps compile_steps(std::span<const StepText> texts, bool of_bytes = true);

// Whether some text has a part that is in no piece.
bool removes_text(std::span<const Step> steps);

// Whether both cut all texts alike.
bool same_steps(std::span<const Step> a, std::span<const Step> b);

// The pieces of a text by one step.
class StepPieces {
 public:
  explicit StepPieces(const Step& step)
      : matcher_(step.automaton), behavior_(step.behavior), inverted_(step.inverted) {}

  // The text is [begin, end) of what is at `data`.
  void begin(const std::uint8_t* data, std::size_t begin, std::size_t end);

  // The end of the next piece, which begins where the last one has ended and may be empty; false at
  // the end of the text.
  bool next(std::size_t* piece_end);

  // Whether the last piece is removed.
  bool is_removed() const { return is_removed_; }

 private:
  struct Part {
    std::size_t end;
    bool is_match;
  };
  bool next_part(Part* part);
  bool peek(Part* part);
  void find_match();

  Matcher matcher_;
  Behavior behavior_;
  bool inverted_;

  std::size_t end_ = 0, at_ = 0;           // of the text, and of the parts that are found
  std::size_t search_ = 0;                 // where the next match is looked for
  std::size_t last_match_end_ = 0;         // of the last match, or Matcher::kNone
  std::size_t match_ = 0, match_end_ = 0;  // found but not yet given, or Matcher::kNone
  bool has_peeked_ = false;
  bool is_removed_ = false;
  Part peeked_{};
};

// The pieces of a text by all steps.
class Pieces {
 public:
  // REQUIRES: some step.
  explicit Pieces(std::span<const Step> steps);

  // REQUIRES: valid UTF-8.
  void begin(const std::uint8_t* data, std::size_t size);

  // The end of the next piece; false at the end of the text.
  bool next(std::size_t* piece_end);

  // Where that piece begins: at the end of the one before, unless something there was removed.
  std::size_t piece_begin() const { return piece_begin_; }

 private:
  const std::uint8_t* data_ = nullptr;
  std::vector<StepPieces> levels_;
  std::vector<std::size_t> ends_;  // by level, of its piece that was given last
  std::size_t level_ = 0;          // of the last of these
  std::size_t piece_begin_ = 0;
};

}  // namespace tokpack

// The normalizers of a tokenizer.json, as the Hugging Face library applies them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/pretokenize/steps.hpp"
#include "core/sentencepiece/character_map.hpp"
#include "core/sentencepiece/character_table.hpp"
#include "core/text/places.hpp"

namespace tokpack {

enum class NormalizerKind : std::uint8_t {
  kRules,       // `from`: a precompiled_charsmap; asked of each grapheme cluster
  kReplace,     // each text `from` becomes `to`
  kExpression,  // each match of the expression `from` becomes `to`
  kPrepend,     // `to` is put in front of a text that is not empty
  kSpaceRuns,   // two and more spaces become `to`
  kWhiteSpace,  // as kSpaceRuns, of any white space, and each of \t, \n and \r
  kStripLeft,   // white space at the begin is removed
  kStripRight,
  kCharacters,  // each character of `from` becomes a text of `to`, where each ends with a NUL
  // BERT's: controls are removed and white space becomes spaces; spaces around each ideograph;
  // marks without width are removed.
  kCleanText,
  kIdeographs,
  kBertMarks,
  kNfc,
  kNfd,
  kNfkc,
  kNfkd,
};

struct NormalizerStep {
  NormalizerKind kind;
  std::string from, to;
};

class TextNormalizer {
 public:
  TextNormalizer() = default;
  // Throws std::invalid_argument for rules that are broken.
  explicit TextNormalizer(std::vector<NormalizerStep> steps);

  bool empty() const { return steps_.empty(); }

  // The normal form of a text, valid until the next call or the end of the text. `places`: of its
  // bytes, which become those of the normal form. REQUIRES: the text is valid UTF-8.
  std::string_view normalize(std::string_view text, Places* places = nullptr);

 private:
  struct Step {
    NormalizerStep settings;
    CharacterMap rules;
    std::unordered_map<std::string_view, std::string_view> characters;
    std::optional<tokpack::Step> matches;  // of an expression, as pieces that are removed
  };
  // Steps that follow each other. Those that take one character after the other, and a
  // decomposition among them, have a table together, for texts in which it is enough.
  struct Part {
    std::span<const Step> steps;
    std::unique_ptr<CharacterTable> table;
  };

  std::string_view normalize_placed(std::string_view text, Places* places);
  static std::string_view apply(const Step& step, std::string_view text, std::string* out,
                                Trail* trail);
  static std::optional<std::string> change(std::span<const Step> steps, std::string_view character);
  void make_parts();

  std::vector<Step> steps_;
  std::vector<Part> parts_;
  std::string out_[2];
};

}  // namespace tokpack

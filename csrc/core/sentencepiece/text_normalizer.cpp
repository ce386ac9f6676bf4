#include "core/sentencepiece/text_normalizer.hpp"

#include <algorithm>
#include <stdexcept>

#include "core/bpe/added_tokens.hpp"
#include "core/pretokenize/expression.hpp"
#include "core/sentencepiece/folded.hpp"
#include "core/text/code_points.hpp"
#include "core/text/graphemes.hpp"
#include "core/text/normal_forms.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kMostOfCluster = 6;  // a cluster of fewer bytes is looked up as a whole

// What BertNormalizer takes for Chinese characters.
const CodePoints kIdeographs({{0x3400, 0x4DBF},
                              {0x4E00, 0x9FFF},
                              {0xF900, 0xFAFF},
                              {0x20000, 0x2A6DF},
                              {0x2A700, 0x2B81F},
                              {0x2B920, 0x2CEAF},
                              {0x2F800, 0x2FA1F}});
const CodePoints kRemoved = CodePoints::bert_removed();
const CodePoints kMarks = CodePoints::bert_marks();
const CodePoints kWhiteSpace = CodePoints::white_space();

const std::uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

// Whether the rules leave a character as it is, unless marks follow.
bool is_plain(const CharacterMap& rules, CodePoint at) {
  if (!rules.leaves(at.value)) return false;
  return at.value < 0x80 ? at.value != '\r' : cluster_class(at.value) == ClusterClass::kAny;
}

// What the characters of a text become, one after the other, as Trail takes it.
using Changes = std::vector<std::pair<std::size_t, std::ptrdiff_t>>;

// As the library counts: what is new is at the end; what is gone goes with the last character
// there is, which may be one before.
void append_changes(std::string_view from, std::string_view to, Changes* changes) {
  const auto characters = [](std::string_view text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  };
  const std::ptrdiff_t more = characters(to) - characters(from);
  for (std::size_t at = 0; at < to.size();) {
    const std::size_t size = character_size(static_cast<std::uint8_t>(to[at]));
    changes->emplace_back(size, 0);
    at += size;
  }
  for (std::ptrdiff_t i = 1; i <= more; ++i) changes->end()[-i].second = 1;
  if (more < 0 && !changes->empty()) changes->back().second += more;
}

void append_part(const CharacterMap::Rule& rule, std::string_view part, std::string* out,
                 Changes* changes) {
  const std::string_view to = rule.size != 0 ? rule.replacement : part;
  *out += to;
  if (changes != nullptr) append_changes(part, to, changes);
}

void append_cluster(const CharacterMap& rules, std::string_view cluster, std::string* out,
                    Changes* changes) {
  if (cluster.size() < kMostOfCluster) {
    const auto rule = rules.shortest(bytes_of(cluster), cluster.size());
    if (rule.size != 0) return append_part(rule, cluster, out, changes);
  }
  for (std::size_t at = 0; at < cluster.size();) {
    const std::size_t size = decode_utf8(bytes_of(cluster) + at).size;
    append_part(rules.shortest(bytes_of(cluster) + at, size), cluster.substr(at, size), out,
                changes);
    at += size;
  }
}

void append_ruled(const CharacterMap& rules, std::string_view text, std::string* out,
                  Changes* changes) {
  const std::uint8_t* data = bytes_of(text);
  std::uint64_t ascii[2] = {};  // the plain characters, a bit each
  for (std::uint32_t c = 0; c < 0x80; ++c) {
    ascii[c >> 6] |= std::uint64_t{is_plain(rules, {c, 1})} << (c & 63);
  }
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at, last = at;
    while (end < text.size()) {
      if (data[end] < 0x80) {
        if ((ascii[data[end] >> 6] >> (data[end] & 63) & 1) == 0) break;
        last = end++;
        continue;
      }
      const CodePoint here = decode_utf8(data + end);
      if (!is_plain(rules, here)) break;
      last = end;
      end += here.size;
    }
    // The last plain character may begin the cluster of what is behind it.
    if (end < text.size()) end = last;
    const std::string_view plain = text.substr(at, end - at);
    *out += plain;
    if (changes != nullptr) append_changes(plain, plain, changes);
    at = end;
    if (at == text.size()) return;
    const std::size_t size = grapheme_size(data + at, text.size() - at);
    append_cluster(rules, text.substr(at, size), out, changes);
    at += size;
  }
}

void append_ruled(const CharacterMap& rules, std::string_view text, std::string* out,
                  Trail* trail) {
  Changes changes;
  append_ruled(rules, text, out, trail != nullptr ? &changes : nullptr);
  for (const auto& [size, change] : changes) trail->change(size, change);
}

// How much of the text is the white space that kWhiteSpace replaces; 0 for none.
std::size_t replaced_space(std::string_view text, std::size_t at) {
  const std::size_t end = space_end(bytes_of(text), text.size(), at);
  if (end == at) return 0;
  const bool one = decode_utf8(bytes_of(text) + at).size == end - at;
  return one && text[at] != '\t' && text[at] != '\n' && text[at] != '\r' ? 0 : end - at;
}

// Replaces what match(text, at), a number of bytes, tells at each place that find(at) gives.
template <class Find, class Match>
std::string_view replace(std::string_view text, const std::string& to, std::string* out,
                         Trail* trail, Find&& find, Match&& match) {
  std::size_t from = 0;
  for (std::size_t at = 0; at < text.size();) {
    at = std::min(find(at), text.size());
    const std::size_t size = at < text.size() ? match(text, at) : 0;
    if (size == 0) {
      ++at;
      continue;
    }
    out->append(text, from, at - from);
    *out += to;
    if (trail != nullptr) {
      trail->keep(from, at);
      trail->put(to.size(), at + size - 1);
    }
    at += size;
    from = at;
  }
  if (from == 0) return text;
  out->append(text, from);
  if (trail != nullptr) trail->keep(from, text.size());
  return *out;
}

// The library finds no match in an empty text.
std::string_view replace_matches(const Step& matches, std::string_view text, const std::string& to,
                                 std::string* out, Trail* trail) {
  StepPieces pieces(matches);
  if (!text.empty()) pieces.begin(bytes_of(text), 0, text.size());
  bool found = false;
  std::size_t end = 0;
  for (std::size_t at = 0; !text.empty() && pieces.next(&end); at = end) {
    found = found || pieces.is_removed();
    *out += pieces.is_removed() ? std::string_view(to) : text.substr(at, end - at);
    if (trail == nullptr || at == end) continue;
    pieces.is_removed() ? trail->put(to.size(), end - 1) : trail->keep(at, end);
  }
  if (found) return *out;
  out->clear();  // the text stays where it is
  return text;
}

// Appends append(code point, its text, out) of each character.
template <class Append>
std::string_view each_character(std::string_view text, std::string* out, Trail* trail,
                                Append&& append) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(bytes_of(text) + at);
    const std::size_t before = out->size();
    append(c.value, text.substr(at, c.size), out);
    if (trail != nullptr) trail->put(out->size() - before, at);
    at += c.size;
  }
  return *out;
}

void append_clean(std::uint32_t c, std::string_view character, std::string* out) {
  if (kRemoved.contains(c)) return;
  *out += kWhiteSpace.contains(c) ? std::string_view(" ") : character;
}

void append_apart(std::uint32_t c, std::string_view character, std::string* out) {
  const std::string_view space = kIdeographs.contains(c) ? " " : "";
  ((*out += space) += character) += space;
}

void append_no_mark(std::uint32_t c, std::string_view character, std::string* out) {
  if (!kMarks.contains(c)) *out += character;
}

std::string_view normalized(NormalForm form, std::string_view text, std::string* out,
                            Trail* trail) {
  if (is_normal_quick(form, text)) return text;
  normalize(form, text, *out, trail);
  return *out;
}

bool decomposes(NormalizerKind kind) {
  return kind == NormalizerKind::kNfd || kind == NormalizerKind::kNfkd;
}

bool is_by_character(NormalizerKind kind) {
  return kind == NormalizerKind::kCharacters || kind == NormalizerKind::kCleanText ||
         kind == NormalizerKind::kIdeographs || kind == NormalizerKind::kBertMarks;
}

}  // namespace

TextNormalizer::TextNormalizer(std::vector<NormalizerStep> steps) {
  for (NormalizerStep& settings : steps) {
    Step& step = steps_.emplace_back();
    step.settings = std::move(settings);
    const NormalizerStep& known = step.settings;
    if (known.kind == NormalizerKind::kReplace && known.from.empty()) {
      throw std::invalid_argument("a normalizer replaces nothing");
    }
    if (known.kind == NormalizerKind::kExpression) {
      try {
        step.matches = {Automaton(parse_expression(known.from)), Behavior::kRemoved};
        // There the library itself loses count, and fails in a later step.
        if (step.matches->automaton.may_match_nothing()) {
          throw std::invalid_argument("a Replace of what may be empty");
        }
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(std::string("its normalizer has ") + error.what());
      }
    }
    if (known.kind == NormalizerKind::kRules) {
      step.rules = CharacterMap(known.from);
      if (step.rules.empty() || !step.rules.is_sound()) {
        throw std::invalid_argument("its normalization rules (precompiled_charsmap) are broken");
      }
    }
  }
  // Views of texts that no longer move.
  for (Step& step : steps_) {
    if (step.settings.kind != NormalizerKind::kCharacters) continue;
    const std::string_view from = step.settings.from, to = step.settings.to;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < from.size();) {
      const std::size_t size =
          std::min(from.size() - at, character_size(static_cast<std::uint8_t>(from[at])));
      const std::size_t end = to.find('\0', begin);
      if (end == std::string_view::npos) throw std::invalid_argument("a character becomes nothing");
      step.characters.emplace(from.substr(at, size), to.substr(begin, end - begin));
      begin = end + 1;
      at += size;
    }
  }
  make_parts();
}

void TextNormalizer::make_parts() {
  for (std::size_t begin = 0, end; begin < steps_.size(); begin = end) {
    bool is_single = false, has_form = false;
    for (end = begin; end < steps_.size(); ++end) {
      const NormalizerKind kind = steps_[end].settings.kind;
      if (is_by_character(kind)) {
        is_single = true;
      } else if (decomposes(kind) && !has_form) {
        has_form = true;
      } else {
        break;
      }
    }
    end = std::max(end, begin + 1);
    Part& part = parts_.emplace_back();
    part.steps = {steps_.data() + begin, end - begin};
    if (!is_single) continue;
    part.table = std::make_unique<CharacterTable>(
        [steps = part.steps](std::string_view character) { return change(steps, character); });
  }
}

// A decomposition sorts the marks behind a character. That is nothing to see where all marks but
// one are removed later: where one stays, it may change its place.
std::optional<std::string> TextNormalizer::change(std::span<const Step> steps,
                                                  std::string_view character) {
  std::string result(character), buffer;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    buffer.clear();
    result = std::string(apply(steps[i], result, &buffer, nullptr));
    if (!decomposes(steps[i].settings.kind)) continue;
    for (std::size_t at = 0; at < result.size();) {
      const CodePoint c = decode_utf8(bytes_of(result) + at);
      const bool is_mark = combining_class(c.value) != 0;
      const auto left = is_mark ? change(steps.subspan(i + 1), result.substr(at, c.size)) : "";
      if (!left || !left->empty()) return std::nullopt;
      at += c.size;
    }
  }
  return result;
}

std::string_view TextNormalizer::normalize(std::string_view text, Places* places) {
  if (places != nullptr) return normalize_placed(text, places);
  unsigned turn = 0;
  for (const Part& part : parts_) {
    if (part.table && part.table->change(text, &out_[turn])) {
      text = out_[turn];
      turn ^= 1;
      continue;
    }
    for (const Step& step : part.steps) {
      std::string* out = &out_[turn];
      out->clear();
      text = apply(step, text, out, nullptr);
      if (!out->empty()) turn ^= 1;
    }
  }
  return text;
}

std::string_view TextNormalizer::normalize_placed(std::string_view text, Places* places) {
  unsigned turn = 0;
  for (const Step& step : steps_) {
    if (text.empty()) break;
    Places moved;
    Trail trail(text, *places, &moved);
    std::string* out = &out_[turn];
    out->clear();
    const std::string_view before = text;
    text = apply(step, text, out, &trail);
    if (text.data() == out->data()) {
      turn ^= 1;
    } else {  // a part of what was there
      moved.clear();
      trail.keep(static_cast<std::size_t>(text.data() - before.data()),
                 static_cast<std::size_t>(text.data() - before.data()) + text.size());
    }
    *places = std::move(moved);
  }
  return text;
}

std::string_view TextNormalizer::apply(const Step& step, std::string_view text, std::string* out,
                                       Trail* trail) {
  const NormalizerStep& known = step.settings;
  switch (known.kind) {
    case NormalizerKind::kRules:
      append_ruled(step.rules, text, out, trail);
      return *out;
    case NormalizerKind::kReplace:
      return replace(
          text, known.to, out, trail, [&](std::size_t at) { return text.find(known.from, at); },
          [&](std::string_view, std::size_t) { return known.from.size(); });
    case NormalizerKind::kExpression:
      return replace_matches(*step.matches, text, known.to, out, trail);
    case NormalizerKind::kPrepend:
      if (!text.empty()) (*out += known.to) += text;
      if (trail != nullptr) {
        trail->put(known.to.size(), 0);
        trail->keep(0, text.size());
      }
      return *out;
    case NormalizerKind::kSpaceRuns:
      return replace(
          text, known.to, out, trail,
          [&](std::size_t at) {
            while (at + 1 < text.size() && (text[at] != ' ' || text[at + 1] != ' ')) ++at;
            return at + 1 < text.size() ? at : text.size();
          },
          [](std::string_view all, std::size_t at) {
            return std::min(all.find_first_not_of(' ', at), all.size()) - at;
          });
    case NormalizerKind::kWhiteSpace:
      return replace(text, known.to, out, trail, [](std::size_t at) { return at; }, replaced_space);
    case NormalizerKind::kStripLeft:
      return text.substr(space_end(bytes_of(text), text.size(), 0));
    case NormalizerKind::kStripRight:
      return text.substr(0, space_begin(bytes_of(text), text.size()));
    case NormalizerKind::kCharacters:
      return each_character(text, out, trail,
                            [&](std::uint32_t, std::string_view character, auto*) {
                              const auto found = step.characters.find(character);
                              *out += found == step.characters.end() ? character : found->second;
                            });
    case NormalizerKind::kCleanText:
      return each_character(text, out, trail, append_clean);
    case NormalizerKind::kIdeographs:
      return each_character(text, out, trail, append_apart);
    case NormalizerKind::kBertMarks:
      return each_character(text, out, trail, append_no_mark);
    case NormalizerKind::kNfc:
      return normalized(NormalForm::kNfc, text, out, trail);
    case NormalizerKind::kNfd:
      return normalized(NormalForm::kNfd, text, out, trail);
    case NormalizerKind::kNfkc:
      return normalized(NormalForm::kNfkc, text, out, trail);
    case NormalizerKind::kNfkd:
      return normalized(NormalForm::kNfkd, text, out, trail);
  }
  return text;
}

}  // namespace tokpack

#include "core/pretokenize/pretokenize.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>

#include "core/pretokenize/scan.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

using Contractions = ScanRules::Contractions;
using Family = ScanShape::Family;
using Tail = ScanRules::Tail;

constexpr ScanShape kGpt2{.family = Family::kGpt2};
constexpr ScanShape kDigitsGpt2{.family = Family::kGpt2, .cut_first = true};
constexpr ScanShape kCl100k{.family = Family::kCl100k};
constexpr ScanShape kMarks{.family = Family::kCl100k, .marks = true};
constexpr ScanShape kCased{.family = Family::kCl100k, .marks = true, .cased = true};
constexpr ScanShape kDeepseek{.family = Family::kDeepseek, .marks = true, .cut_first = true};

struct Named {
  std::string_view name;
  ScanRules rules;
};

constexpr std::string_view kNone = "none";

// These names are in the fingerprints of tokenizers: one that is here stays.
constexpr Named kNames[] = {
    {"gpt2", {kGpt2, Contractions::kAsWritten, 0, Tail::kNone}},
    // StarCoder, SmolLM
    {"digits_gpt2", {kDigitsGpt2, Contractions::kAsWritten, 1, Tail::kNone}},
    // Llama 3, GLM 4, OLMo 2, cl100k
    {"llama3", {kCl100k, Contractions::kAnyCase, 3, Tail::kLines}},
    // Qwen 2, 2.5, 3
    {"qwen2", {kCl100k, Contractions::kAnyCase, 1, Tail::kLines}},
    // Qwen 3.5
    {"qwen35", {kMarks, Contractions::kAnyCase, 1, Tail::kLines}},
    // gpt-oss, Llama 4, MiniMax M2
    {"o200k", {kCased, Contractions::kAnyCase, 3, Tail::kLinesAndSlashes}},
    // Mistral's Tekken
    {"tekken", {kCased, Contractions::kNone, 1, Tail::kLinesAndSlashes}},
    // DeepSeek V3, R1
    {"deepseek_v3", {kDeepseek, Contractions::kNone, 3, Tail::kLines}},
};

const Named* find_named(std::string_view name) {
  const auto* const found = std::ranges::find(kNames, name, &Named::name);
  return found == std::end(kNames) ? nullptr : found;
}

}  // namespace

Pretokenizer::Pretokenizer(std::span<const StepText> texts) {
  set(compile_steps(texts));
  if (keeps_text()) rules = rules_of(steps);
}

void Pretokenizer::set(CompiledSteps compiled) {
  steps = std::move(compiled.steps);
  change = std::move(compiled.change);
  removes = removes_text(steps);
}

Pretokenizer::Pretokenizer(std::string_view pattern_name) {
  const auto texts = texts_of_pattern(pattern_name);
  if (!texts) throw std::invalid_argument("pattern '" + std::string(pattern_name) + "' is unknown");
  set(compile_steps(*texts));
  if (const Named* const named = find_named(pattern_name)) rules = named->rules;
}

LaidWords::LaidWords(const Pretokenizer& pretokenizer, std::optional<std::uint8_t> suffix)
    : change_(pretokenizer.change), suffix_(suffix) {
  const std::span<const Step> steps = pretokenizer.steps;
  const std::size_t outer = change_ ? change_->steps_before : 0;
  if (outer != 0) outer_.emplace(steps.first(outer));
  if (outer != steps.size()) inner_.emplace(steps.subspan(outer));
}

void LaidWords::begin(const std::uint8_t* text, std::size_t size, bool first) {
  text_ = text;
  size_ = size;
  first_ = first;
  has_piece_ = false;
  is_whole_ = !outer_ && size != 0;
  if (outer_) outer_->begin(text, size);
}

bool LaidWords::next_piece() {
  std::size_t begin = 0, end = size_;
  if (outer_) {
    if (!outer_->next(&end)) return false;
    begin = outer_->piece_begin();
  } else if (!std::exchange(is_whole_, false)) {
    return false;
  }
  piece_ = text_ + begin;
  piece_size_ = end - begin;
  if (change_) change(piece_, piece_size_, first_ && begin == 0);
  if (inner_) inner_->begin(piece_, piece_size_);
  return has_piece_ = true;
}

// `first`: a document begins with the piece.
void LaidWords::change(const std::uint8_t* piece, std::size_t size, bool first) {
  const std::string_view text(reinterpret_cast<const char*>(piece), size);
  const std::string& space = change_->space;
  changed_.clear();
  changed_places_.clear();
  const auto begin = static_cast<std::int32_t>(piece - text_);
  const auto put = [&](std::size_t at, std::size_t count) {
    const TokenOffset place{begin + static_cast<std::int32_t>(at),
                            begin + static_cast<std::int32_t>(at + count)};
    if (is_placed_) changed_places_.insert(changed_places_.end(), space.size(), place);
    changed_ += space;
  };
  const bool prefixed = change_->prefix == PrefixScheme::kAlways ||
                        (change_->prefix == PrefixScheme::kFirst && first);
  if (prefixed && !text.starts_with(' ') && !text.starts_with(space)) {
    put(0, std::min(size, character_size(*piece)));
  }
  for (std::size_t at = 0; at < size;) {
    const std::size_t next = std::min(text.find(' ', at), size);
    changed_.append(text, at, next - at);
    for (std::size_t i = at; is_placed_ && i < next; ++i) {
      const auto place = begin + static_cast<std::int32_t>(i);
      changed_places_.push_back({place, place + 1});
    }
    if (next < size) put(next, 1);
    at = next + 1;
  }
  piece_ = reinterpret_cast<const std::uint8_t*>(changed_.data());
  piece_size_ = changed_.size();
}

bool LaidWords::next_word(const std::uint8_t** word, std::size_t* size) {
  while (has_piece_ || next_piece()) {
    *word = piece_;
    *size = piece_size_;
    has_piece_ = inner_.has_value();
    if (!inner_) return true;
    std::size_t end = 0;
    if (inner_->next(&end)) {
      *word += inner_->piece_begin();
      *size = end - inner_->piece_begin();
      return true;
    }
    has_piece_ = false;
  }
  return false;
}

std::size_t LaidWords::next(Buffer<std::uint8_t>* words, std::uint32_t* starts, Places* places) {
  words->clear();
  if (places != nullptr) places->clear();
  is_placed_ = places != nullptr;
  std::size_t count = 0, size = 0;
  const std::uint8_t* word = nullptr;
  while (count < kWindow && next_word(&word, &size)) {
    const std::size_t begin = words->size();
    starts[count++] = static_cast<std::uint32_t>(begin);
    words->resize(begin + size);
    std::memcpy(words->data() + begin, word, size);
    if (suffix_) words->push_back(*suffix_);
    if (places == nullptr) continue;
    const std::size_t in_piece = static_cast<std::size_t>(word - piece_);
    const std::size_t in_text = static_cast<std::size_t>(word - text_);
    for (std::size_t i = 0; i < size; ++i) {
      const auto place = static_cast<std::int32_t>(in_text + i);
      places->push_back(change_ ? changed_places_[in_piece + i] : TokenOffset{place, place + 1});
    }
    if (suffix_) places->push_back(places->back());
  }
  starts[count] = static_cast<std::uint32_t>(words->size());
  return count;
}

Pretokenizer Pretokenizer::of_characters(std::span<const StepText> texts) {
  Pretokenizer pretokenizer;
  pretokenizer.set(compile_steps(texts, false));
  return pretokenizer;
}

std::vector<std::int64_t> pretoken_ends(const Pretokenizer& pretokenizer,
                                        std::optional<Level> level,
                                        std::span<const std::uint8_t> text) {
  if (text.empty()) return {};
  if (!pretokenizer.keeps_text()) {
    LaidWords laid(pretokenizer, std::nullopt);
    Buffer<std::uint8_t> words;
    std::uint32_t starts[kWindow + 1];
    std::vector<std::int64_t> ends;
    std::int64_t before = 0;
    laid.begin(text.data(), text.size(), true);
    while (const std::size_t count = laid.next(&words, starts)) {
      for (std::size_t i = 1; i <= count; ++i) ends.push_back(before + starts[i]);
      before = ends.back();
    }
    return ends;
  }
  if (pretokenizer.steps.empty()) return {static_cast<std::int64_t>(text.size())};
  if (!level) return ends_of(Cutter(pretokenizer.steps, std::nullopt), text);
  return ends_of(Cutter(pretokenizer.steps, pretokenizer.rules, *level), text);
}

std::vector<std::string_view> pattern_names() {
  std::vector<std::string_view> names{kNone};
  for (const Named& one : kNames) names.push_back(one.name);
  return names;
}

std::optional<std::vector<StepText>> texts_of_pattern(std::string_view name) {
  if (name == kNone) return std::vector<StepText>{{"ByteLevel", "", false}};
  const Named* const named = find_named(name);
  return named != nullptr ? std::optional(texts_of(named->rules)) : std::nullopt;
}

std::optional<std::string_view> name_of(const Pretokenizer& pretokenizer) {
  if (pretokenizer.change || pretokenizer.removes) return std::nullopt;
  if (pretokenizer.steps.empty()) return kNone;
  for (const Named& one : kNames) {
    if (one.rules == pretokenizer.rules) return one.name;
  }
  return std::nullopt;
}

}  // namespace tokpack

#include "core/sentencepiece/metaspace_encoder.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "core/base/buffer.hpp"
#include "core/bpe/cached_encoder.hpp"
#include "core/bpe/whole_words.hpp"
#include "core/sentencepiece/folded.hpp"
#include "core/sentencepiece/piece_bpe.hpp"
#include "core/sentencepiece/piece_cutter.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

// The tokens. Where unknown characters become bytes, a run of them may include the text of the
// unknown token itself; so that it is not cut there, that text stands with every byte before and
// behind it.
std::vector<std::string> unigram_pieces(std::vector<std::string> texts,
                                        const UnigramScores& scores) {
  const std::string unknown = texts[scores.unknown];
  if (scores.byte_ids.empty() || unknown.empty()) return texts;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    texts.push_back(one + unknown.front());
    texts.push_back(unknown.back() + one);
  }
  return texts;
}

// Texts that words are not cut within: the tokens of a Unigram, what the merges of a BPE make.
std::vector<std::string> products(const MetaspaceModel& model) {
  if (model.scores) return unigram_pieces(model.tokens, *model.scores);
  std::vector<std::string> texts;
  for (const Merge& merge : model.merges) texts.push_back(model.tokens[merge.product]);
  return texts;
}

// Adds to `places`, if asked for, that so many of the bytes from `begin` on are each their own.
void place_bytes(std::size_t begin, std::size_t count, Places* places) {
  for (std::size_t i = begin; places != nullptr && i < begin + count; ++i) {
    places->push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(i + 1)});
  }
}

// Adds that a byte is from the character at a place of a text.
void place_character(const std::uint8_t* text, std::size_t at, Places* places) {
  if (places == nullptr) return;
  const auto begin = static_cast<std::int32_t>(at);
  places->push_back({begin, begin + static_cast<std::int32_t>(character_size(text[at]))});
}

// `place`: where the text begins in that of the places.
void append_folded(const std::uint8_t* text, std::size_t size, Buffer<std::uint8_t>* out,
                   Places* places = nullptr, std::size_t place = 0) {
  const std::string_view rest(reinterpret_cast<const char*>(text), size);
  out->reserve(out->size() + size);
  for (std::size_t at = 0;;) {
    const std::size_t next = std::min(rest.find(kLowerBlock, at), size);
    const std::size_t begin = out->size();
    out->resize(begin + next - at);
    if (next > at) std::memcpy(out->data() + begin, text + at, next - at);
    place_bytes(place + at, next - at, places);
    if (next == size) return;
    out->push_back(' ');
    place_character(text - place, place + next, places);
    at = next + kLowerBlock.size();
  }
}

bool begins_with_space(const std::uint8_t* text, std::size_t size) {
  const std::string_view view(reinterpret_cast<const char*>(text), size);
  return view.starts_with(' ') || view.starts_with(kLowerBlock);
}

// Id: the type of ids in the word cache. Out: the type of ids in the output.
template <class Id, class Out>
class Encoder final : public CachedEncoder<Id, Out> {
  using Base = CachedEncoder<Id, Out>;
  using typename Base::Ids;

 public:
  Encoder(MetaspaceModel model, std::size_t cache_bytes, Level level)
      : Base(level, cache_bytes),
        model_(std::move(model)),
        cutter_(products(model_), model_.scores.has_value(), model_.cuts_at_spaces, level),
        whole_words_(model_.ignore_merges ? WholeWords(model_.tokens) : WholeWords()),
        normalizer_(std::move(model_.steps)),
        is_utf8_(utf8_check(level)),
        added_(group_added()) {
    if (model_.scores) {
      unigram_.emplace(model_.tokens, *model_.scores);
    } else {
      bpe_.emplace(model_.tokens, model_.merges, model_.byte_ids, model_.unknown);
    }
    for (std::uint32_t id = 0; id < model_.tokens.size(); ++id) {
      const bool varies = id == model_.unknown && byte_ids().empty();
      placer_.set_size(id, varies ? 0 : model_.tokens[id].size());
    }
    for (const std::uint32_t id : byte_ids()) placer_.set_size(id, 1);
    seed();
  }

 private:
  using Base::append, Base::copy_ids, Base::ids_, Base::join_runs, Base::kernel_,
      Base::kMaxDocument, Base::look_up, Base::misses_, Base::place, Base::placer_, Base::remember,
      Base::room, Base::specials_, Base::split;

  const std::vector<std::uint32_t>& byte_ids() const {
    return model_.scores ? model_.scores->byte_ids : model_.byte_ids;
  }

  // What is looked for in normal form. Texts are put into it as encode_part() does.
  AddedTokenGroups group_added() {
    const auto normal_form = [&](std::string content) {
      if (!model_.normalizes) return std::string(normalizer_.normalize(content));
      return folded(content).insert(0, model_.prepends ? 1 : 0, ' ');
    };
    return group_added_tokens(std::exchange(model_.added, {}), model_.encode_specials, normal_form);
  }

  // Enters the tokens themselves into the cache.
  void seed() {
    for (const std::string& token : model_.tokens) {
      if (token.empty() || token.size() > WordKey::kMaxSize) continue;
      const auto* text = reinterpret_cast<const std::uint8_t*>(token.data());
      const WordKey key = WordKey::of(text, token.size());
      if (const auto ids = ids_of(text, token.size())) remember(key, kernel_.hash(key), ids);
    }
    misses_ = 0;
  }

  void encode_document(const std::uint8_t* text, std::size_t size) override {
    specials_ += added_.counted.count(text, size);
    split(added_.raw, text, size, [&](const std::uint8_t* part, std::size_t part_size) {
      encode_part(part, part_size, part == text);
    });
  }

  // `first`: the document begins here.
  void encode_part(const std::uint8_t* text, std::size_t size, bool first) {
    // What relies on valid UTF-8 could read behind the text if it were not.
    if (!normalizer_.empty() && is_utf8_(text, size)) {
      const std::string_view view(reinterpret_cast<const char*>(text), size);
      if (placer_.is_on()) {
        places_.clear();
        place_characters(view, placer_.begin_of(text), &places_);
      }
      const std::string_view normal =
          normalizer_.normalize(view, placer_.is_on() ? &places_ : nullptr);
      if (normal != view || placer_.is_on()) {
        placer_.show_places(reinterpret_cast<const std::uint8_t*>(normal.data()), &places_);
        text = reinterpret_cast<const std::uint8_t*>(normal.data());
        size = normal.size();
      }
    }
    const bool in_normal_form = model_.normalizes && !added_.normalized.empty();
    if (in_normal_form) {
      normal_.clear();
      if (model_.prepends) normal_.push_back(' ');
      append_folded(text, size, &normal_);
      const std::size_t prefix = model_.prepends ? 1 : 0;
      if (normal_.size() == size + prefix) {
        placer_.show_copy(normal_.data(), text, prefix);
      } else {
        placer_.show_other_text();
      }
      text = normal_.data();
      size = normal_.size();
    }
    const bool prepends = model_.prepends && !in_normal_form;
    split(added_.normalized, text, size,
          [&](const std::uint8_t* segment, std::size_t segment_size) {
            encode_segment(segment, segment_size, first && segment == text, prepends);
          });
    placer_.show_document();
  }

  void encode_segment(const std::uint8_t* text, std::size_t size, bool first, bool prepends) {
    const bool prefixed =
        model_.prefix == PrefixScheme::kAlways || (model_.prefix == PrefixScheme::kFirst && first);
    const bool in_front = prepends || (prefixed && !begins_with_space(text, size));
    const std::size_t prefix = in_front && !model_.splits_white_space ? 1 : 0;
    lay(text, size, prefix, nullptr);
    const std::size_t end = text_.size();
    if (end > kMaxDocument) throw std::out_of_range("a document has 2^31 bytes or more");
    const std::size_t begin = ids_->size();
    encode_text(end);
    if (model_.fuse_unknown) join_runs(begin, model_.unknown);
    if (!placer_.is_on()) return;
    if (!model_.splits_white_space && end == size + prefix) {
      return place(begin, text, size, prefix);
    }
    lay(text, size, prefix, &laid_places_);
    token_sizes_.clear();
    for (std::size_t i = begin; i < ids_->size(); ++i) {
      token_sizes_.push_back(placer_.size_of(static_cast<std::uint32_t>(ids_->data()[i])));
    }
    placer_.place_laid(token_sizes_, text, laid_places_);
  }

  // Sets text_ to a text, folded, with `prefix` spaces in front, and `places` to where its bytes
  // are from in the text.
  void lay(const std::uint8_t* text, std::size_t size, std::size_t prefix, Places* places) {
    text_.clear();
    if (places != nullptr) places->clear();
    if (model_.splits_white_space) return append_words(text, size, places);
    if (prefix != 0) {
      text_.push_back(' ');
      place_character(text, 0, places);
    }
    append_folded(text, size, &text_, places);
  }

  // Appends the ids of text_.
  void encode_text(std::size_t end) {
    if (const auto whole = whole_words_.find(text_.data(), end)) return append(*whole);
    pad_keys(&text_);
    summed_ = 0;
    sum_ = 0;
    for (std::size_t at = 0; at < end;) {
      const std::size_t begin = at;
      const std::span<const std::uint32_t> starts = cutter_.next(text_.data(), end, &at);
      room(kLowerBlock.size() * (at - begin));  // a space may be unknown, and then three bytes
      for (std::size_t from = 0; from + 1 < starts.size(); from += kWindow) {
        const std::size_t count = std::min(kWindow, starts.size() - 1 - from);
        look_up(text_.data(), starts.data() + from, count);
      }
    }
  }

  // Each word between white space, with a space in front.
  void append_words(const std::uint8_t* text, std::size_t size, Places* places) {
    for (std::size_t at = 0;;) {
      at = space_end(text, size, at);
      if (at == size) return;
      const std::size_t begin = at;
      while (at < size && space_at(text, size, at) == 0) ++at;
      if (!begins_with_space(text + begin, at - begin)) {
        text_.push_back(' ');
        place_character(text, begin, places);
      }
      append_folded(text + begin, at - begin, &text_, places, begin);
    }
  }

  std::optional<Ids> ids_of(const std::uint8_t* text, std::size_t size) override {
    ++misses_;
    word_.clear();
    const std::string_view word(reinterpret_cast<const char*>(text), size);
    if (bpe_) {
      bpe_->encode(word, &word_);
    } else if (word.starts_with(' ')) {
      double sum = 0;
      unigram_->encode_after(word, &sum, &word_);
    } else if (!unigram_->encode(word, &word_)) {
      return std::nullopt;
    }
    return Ids(word_);
  }

  Out* encode_huge(const std::uint8_t* text, std::size_t size, Out* out) override {
    return bpe_ ? copy_ids(*ids_of(text, size), out) : encode_in_context(text, size, out);
  }

  // Only of a Unigram: merging looks at nothing outside of a word.
  Out* encode_in_context(const std::uint8_t* text, std::size_t size, Out* out) override {
    const auto begin = static_cast<std::size_t>(text - text_.data());
    const std::string_view all(reinterpret_cast<const char*>(text_.data()), begin + size);
    // Sums begin with each word of the library, at a space.
    const std::size_t space = all.rfind(' ', begin);
    const std::size_t word = space == std::string_view::npos ? 0 : space;
    if (summed_ <= word || summed_ > begin) {
      summed_ = word;
      sum_ = 0;
    }
    word_.clear();
    if (summed_ < begin)
      unigram_->encode_after(all.substr(summed_, begin - summed_), &sum_, &word_);
    word_.clear();
    unigram_->encode_after(all.substr(begin), &sum_, &word_);
    summed_ = begin + size;
    return copy_ids(word_, out);
  }

  MetaspaceModel model_;
  std::optional<PieceBpe> bpe_;  // one of the two
  std::optional<PieceUnigram> unigram_;
  PieceCutter cutter_;
  WholeWords whole_words_;
  TextNormalizer normalizer_;
  Utf8Check is_utf8_;
  AddedTokenGroups added_;

  Places places_;       // of what a normalizer has changed
  Places laid_places_;  // of text_, in the text that it is of
  std::vector<std::uint32_t> token_sizes_;
  Buffer<std::uint8_t> normal_;  // the text between two tokens, folded
  Buffer<std::uint8_t> text_;    // a segment of it, folded, and kKeySlack zeros
  std::vector<std::uint32_t> word_;
  double sum_ = 0;          // of a Unigram's scores in the word that ends, or goes on, at
  std::size_t summed_ = 0;  // this place of text_
};

}  // namespace

std::unique_ptr<BpeEncoder> make_metaspace_encoder(MetaspaceModel model, std::size_t vocab_size,
                                                   bool wide, std::size_t cache_bytes,
                                                   Level level) {
  return make_cached_encoder<Encoder>(vocab_size, wide, std::move(model), cache_bytes, level);
}

}  // namespace tokpack

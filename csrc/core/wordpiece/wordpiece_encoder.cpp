#include "core/wordpiece/wordpiece_encoder.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/buffer.hpp"
#include "core/bpe/cached_encoder.hpp"
#include "core/sentencepiece/folded.hpp"
#include "core/sentencepiece/piece_trie.hpp"
#include "core/text/utf8.hpp"
#include "core/wordpiece/word_cutter.hpp"

namespace tokpack {
namespace {

// With U+2581 for each space.
std::string unfolded(std::string_view token) {
  std::string text;
  for (const char c : token) text += c == ' ' ? kLowerBlock : std::string_view(&c, 1);
  return text;
}

// The tokens by what is behind `prefix`, of those that begin with it.
PieceTrie pieces(const std::vector<std::string>& tokens, const std::string& prefix) {
  std::vector<PieceTrie::Entry> entries;
  for (std::uint32_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() > prefix.size() && tokens[id].starts_with(prefix)) {
      entries.push_back({tokens[id].substr(prefix.size()), id, 0});
    }
  }
  return PieceTrie(std::move(entries));
}

// Id: the type of ids in the word cache. Out: the type of ids in the output.
template <class Id, class Out>
class Encoder final : public CachedEncoder<Id, Out> {
  using Base = CachedEncoder<Id, Out>;
  using typename Base::Ids;

 public:
  Encoder(WordPieceModel model, std::size_t cache_bytes, Level level)
      : Base(level, cache_bytes),
        model_(std::move(model)),
        first_(pieces(model_.tokens, "")),
        later_(pieces(model_.tokens, model_.prefix)),
        normalizer_(std::move(model_.steps)),
        cutter_(model_.cuts),
        is_utf8_(utf8_check(level)) {
    added_ = group_added_tokens(
        std::exchange(model_.added, {}), model_.encode_specials,
        [&](std::string content) { return std::string(normalizer_.normalize(content)); });
    if (model_.scores) unigram_.emplace(model_.tokens, *model_.scores);
    if (model_.bpe) {
      bpe_.emplace(model_.tokens, model_.prefix, model_.unknown, std::move(*model_.bpe));
    }
    if (model_.pretokenizer) laid_.emplace(*model_.pretokenizer, std::nullopt);
    seed();
  }

 private:
  using Base::append, Base::copy_ids, Base::ids_, Base::kernel_, Base::look_up, Base::misses_,
      Base::place, Base::placer_, Base::remember, Base::room, Base::specials_, Base::split;

  // Enters the tokens themselves into the cache.
  void seed() {
    for (const std::string& token : model_.tokens) {
      if (token.empty() || token.size() > WordKey::kMaxSize) continue;
      std::uint8_t text[kKeySlack] = {};
      std::memcpy(text, token.data(), token.size());
      const WordKey key = WordKey::of(text, token.size());
      remember(key, kernel_.hash(key), ids_of(text, token.size()));
    }
    misses_ = 0;
  }

  void encode_document(const std::uint8_t* text, std::size_t size) override {
    specials_ += added_.counted.count(text, size);
    split(added_.raw, text, size, [&](const std::uint8_t* part, std::size_t part_size) {
      // What relies on valid UTF-8 could read behind the text if it were not.
      if (!is_utf8_(part, part_size)) {
        const std::size_t first = ids_->size();
        append(model_.unknown);
        return place(first, part, part_size);
      }
      const std::string_view view(reinterpret_cast<const char*>(part), part_size);
      if (placer_.is_on()) {
        places_.clear();
        place_characters(view, placer_.begin_of(part), &places_);
      }
      const std::string_view normal =
          normalizer_.normalize(view, placer_.is_on() ? &places_ : nullptr);
      const auto* begin = reinterpret_cast<const std::uint8_t*>(normal.data());
      placer_.show_places(begin, &places_);
      split(added_.normalized, begin, normal.size(),
            [&](const std::uint8_t* segment, std::size_t segment_size) {
              encode_segment(segment, segment_size, part == text && segment == begin);
            });
      placer_.show_document();
    });
  }

  // `first`: the document begins here.
  void encode_segment(const std::uint8_t* text, std::size_t size, bool first) {
    if (laid_) {
      laid_->begin(text, size, first);
      Places* const places = placer_.is_on() ? &laid_places_ : nullptr;
      while (const std::size_t count = laid_->next(&words_, starts_, places)) {
        look_up_words(count, text);
      }
      return;
    }
    std::uint32_t* const sources = placer_.is_on() ? sources_ : nullptr;
    for (std::size_t at = 0; at < size;) {
      const std::size_t count = cutter_.cut(text, size, &at, &words_, starts_, sources);
      laid_places_.clear();
      for (std::size_t i = 0; sources != nullptr && i < count; ++i) {
        for (std::uint32_t byte = 0; byte < starts_[i + 1] - starts_[i]; ++byte) {
          const auto place = static_cast<std::int32_t>(sources[i] + byte);
          laid_places_.push_back({place, place + 1});
        }
      }
      look_up_words(count, text);
    }
  }

  // Appends the ids of words_, which begin at starts_ and are from laid_places_ of a text.
  void look_up_words(std::size_t count, const std::uint8_t* text) {
    const std::size_t end = words_.size();
    pad_keys(&words_);
    room(bpe_ ? bpe_->most_ids(end, count) : end);
    if (!placer_.is_on()) return look_up(words_.data(), starts_, count);
    token_sizes_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t first = ids_->size();
      look_up(words_.data(), starts_ + i, 1);
      const char* const word = reinterpret_cast<const char*>(words_.data()) + starts_[i];
      append_sizes({ids_->data() + first, ids_->size() - first},
                   {word, starts_[i + 1] - starts_[i]});
    }
    placer_.place_laid(token_sizes_, text, laid_places_);
  }

  // Appends how many bytes of a word each of its ids stands for, or 0 where that is not certain.
  void append_sizes(std::span<const Out> ids, std::string_view word) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool is_last = i + 1 == ids.size();
      const std::size_t size =
          size_of(static_cast<std::uint32_t>(ids[i]), word.substr(at), at != 0, is_last);
      token_sizes_.push_back(static_cast<std::uint32_t>(size));
      at += size;
      if (size == 0) return token_sizes_.resize(token_sizes_.size() + ids.size() - 1 - i, 0);
    }
  }

  std::size_t size_of(std::uint32_t id, std::string_view rest, bool goes_on, bool is_last) const {
    const std::string written = unigram_ ? unfolded(model_.tokens[id]) : model_.tokens[id];
    std::string_view token = written;
    const std::string_view suffix = bpe_ ? bpe_->suffix() : "";
    if (goes_on && !unigram_ && token.starts_with(model_.prefix)) {
      token.remove_prefix(model_.prefix.size());
    }
    if (is_last && token.size() > suffix.size() && token.ends_with(suffix)) {
      token.remove_suffix(suffix.size());
    }
    const bool stands_there = !token.empty() && rest.starts_with(token);
    if (id != model_.unknown && stands_there) return token.size();
    if (is_fallback_byte(written)) return stands_there ? 0 : 1;
    if (id != model_.unknown || stands_there) return 0;
    if (!bpe_ || bpe_->fuses_unknown()) return is_last ? rest.size() : 0;
    return std::min(rest.size(), character_size(static_cast<std::uint8_t>(rest[0])));
  }

  bool is_fallback_byte(std::string_view token) const {
    const bool falls_back =
        bpe_ ? bpe_->falls_back() : unigram_ && !model_.scores->byte_ids.empty();
    return falls_back && token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
  }

  std::optional<Ids> ids_of(const std::uint8_t* text, std::size_t size) override {
    ++misses_;
    word_.clear();
    const std::string_view word(reinterpret_cast<const char*>(text), size);
    if (bpe_) {
      bpe_->encode(word, &word_);
      return Ids(word_);
    }
    if (unigram_) {
      double sum = 0;
      unigram_->encode_after(folded(word), &sum, &word_);
      return Ids(word_);
    }
    const auto characters = static_cast<std::size_t>(
        std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xC0) != 0x80; }));
    if (characters > model_.longest_word || !cut_into_pieces(word)) word_ = {model_.unknown};
    return Ids(word_);
  }

  // Appends the pieces of a word to word_, the longest from each place on; false where there is
  // none.
  bool cut_into_pieces(std::string_view word) {
    for (std::size_t at = 0; at < word.size();) {
      const PieceTrie& trie = at == 0 ? first_ : later_;
      std::size_t end = at;
      std::uint32_t node = 0;
      trie.prefixes(word, at, [&](std::size_t piece_end, std::uint32_t piece, double) {
        end = piece_end;
        node = piece;
      });
      if (end == at) return false;
      word_.push_back(trie.id(node));
      at = end;
    }
    return true;
  }

  Out* encode_huge(const std::uint8_t* text, std::size_t size, Out* out) override {
    return copy_ids(*ids_of(text, size), out);
  }

  // Never called: ids_of() always gives ids, as nothing outside of a word matters.
  Out* encode_in_context(const std::uint8_t*, std::size_t, Out*) override {
    throw std::logic_error("the ids of a word depend on the word alone");
  }

  WordPieceModel model_;
  PieceTrie first_, later_;     // pieces at the begin of a word, and behind others
  std::optional<WordBpe> bpe_;  // instead of these, or
  std::optional<PieceUnigram> unigram_;
  TextNormalizer normalizer_;
  WordCutter cutter_;
  std::optional<LaidWords> laid_;  // instead of it
  Utf8Check is_utf8_;
  AddedTokenGroups added_;

  Buffer<std::uint8_t> words_;  // one after the other, and kKeySlack zeros
  std::uint32_t starts_[kWindow + 1] = {};
  std::vector<std::uint32_t> word_;

  Places places_;       // of what was normalized
  Places laid_places_;  // of words_, in the text that they are of
  std::uint32_t sources_[kWindow + 1] = {};
  std::vector<std::uint32_t> token_sizes_;
};

}  // namespace

std::unique_ptr<BpeEncoder> make_wordpiece_encoder(WordPieceModel model, std::size_t vocab_size,
                                                   bool wide, std::size_t cache_bytes,
                                                   Level level) {
  return make_cached_encoder<Encoder>(vocab_size, wide, std::move(model), cache_bytes, level);
}

}  // namespace tokpack

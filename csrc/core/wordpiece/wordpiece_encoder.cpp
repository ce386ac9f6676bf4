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
    placer_.show_other_text();  // no token is placed: words lose what is between them
    split(added_.raw, text, size, [&](const std::uint8_t* part, std::size_t part_size) {
      // What relies on valid UTF-8 could read behind the text if it were not.
      if (!is_utf8_(part, part_size)) return append(model_.unknown);
      const std::string_view normal =
          normalizer_.normalize({reinterpret_cast<const char*>(part), part_size});
      split(added_.normalized, reinterpret_cast<const std::uint8_t*>(normal.data()), normal.size(),
            [&](const std::uint8_t* segment, std::size_t segment_size) {
              const bool first =
                  part == text && segment == reinterpret_cast<const std::uint8_t*>(normal.data());
              encode_segment(segment, segment_size, first);
            });
    });
  }

  // `first`: the document begins here.
  void encode_segment(const std::uint8_t* text, std::size_t size, bool first) {
    const std::size_t begin = ids_->size();
    if (laid_) {
      laid_->begin(text, size, first);
      while (const std::size_t count = laid_->next(&words_, starts_)) look_up_words(count);
    } else {
      for (std::size_t at = 0; at < size;) {
        look_up_words(cutter_.cut(text, size, &at, &words_, starts_));
      }
    }
    place(begin, text, size);
  }

  // Appends the ids of words_, which begin at starts_.
  void look_up_words(std::size_t count) {
    const std::size_t end = words_.size();
    pad_keys(&words_);
    room(bpe_ ? bpe_->most_ids(end, count) : end);
    look_up(words_.data(), starts_, count);
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
};

}  // namespace

std::unique_ptr<BpeEncoder> make_wordpiece_encoder(WordPieceModel model, std::size_t vocab_size,
                                                   bool wide, std::size_t cache_bytes,
                                                   Level level) {
  return make_cached_encoder<Encoder>(vocab_size, wide, std::move(model), cache_bytes, level);
}

}  // namespace tokpack

#include "core/bpe/bpe_encoder.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "core/bpe/cached_encoder.hpp"
#include "core/bpe/long_word_cutter.hpp"
#include "core/bpe/window_merger.hpp"
#include "core/text/normal_forms.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

// Id: the type of ids in the word cache. Out: the type of ids in the output.
template <class Id, class Out>
class Encoder final : public CachedEncoder<Id, Out> {
  using Base = CachedEncoder<Id, Out>;
  using typename Base::Ids;

 public:
  Encoder(BpeModel model, std::vector<AddedToken> added, const std::vector<std::string>& words,
          const BpeOptions& options)
      : Base(options.level, options.cache_bytes),
        model_(std::move(model)),
        options_(options),
        is_utf8_(utf8_check(options.level)),
        added_(group_added_tokens(
            std::move(added), options.encode_specials,
            [&](std::string content) { return normal_form(std::move(content)); })),
        windows_(model_.sizes()) {
    for (std::uint32_t id = 0; id < words.size(); ++id) placer_.set_size(id, words[id].size());
    take_space_runs();
    const Pretokenizer& own = options_.pretokenizer;
    if (!own.keeps_text() || options.suffix) {
      laid_.emplace(own, options.suffix);
    } else if (!own.steps.empty()) {
      cutter_.emplace(own.steps, own.rules, options.level, longest_run_);
    }
    prefixes_ = own.prefixes() && !laid_;
    check_utf8_ = options.form || options.normalizer || !cutter_ || cutter_->needs_utf8();
    seed(words);
  }

 private:
  using Base::copy_ids, Base::data_end_, Base::ids_, Base::kernel_, Base::kMaxDocument,
      Base::long_cache_, Base::look_up, Base::misses_, Base::lookup_with, Base::mediums_,
      Base::place, Base::placer_, Base::remember, Base::room, Base::run, Base::specials_,
      Base::split;

  std::string normal_form(std::string content) const {
    if (options_.normalizer) return std::string(options_.normalizer(content, nullptr));
    if (!options_.form) return content;
    std::string normal;
    normalize(*options_.form, content, normal);
    return normal;
  }

  // Where all normalized tokens are runs of spaces (GPT-NeoX), the scanner finds them. The text
  // behind one gets no space in front.
  void take_space_runs() {
    const std::optional<ScanRules>& rules = options_.pretokenizer.rules;
    if (options_.pretokenizer.change || options_.suffix || !rules ||
        rules->shape != ScanShape{.family = ScanShape::Family::kGpt2})
      return;
    longest_run_ = longest_space_run(added_.normalized.tokens());
    if (longest_run_ == 0) return;
    run_ids_.resize(longest_run_ + 1);
    for (const auto& token : added_.normalized.tokens()) {
      run_ids_[token.content.size()] = token.id;
      placer_.set_size(token.id, token.content.size());
    }
    added_.normalized = {};
  }

  // Enters words into the cache. Their ids come from merging: a token of the vocabulary is not
  // always what merging makes of its bytes.
  void seed(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      if (word.empty() || word.size() > WordKey::kMaxSize) continue;
      if (options_.suffix && static_cast<std::uint8_t>(word.back()) != *options_.suffix) continue;
      std::uint8_t text[kKeySlack] = {};
      std::memcpy(text, word.data(), word.size());
      if (longest_run_ != 0 && is_space_run(text, word.size())) continue;
      const WordKey key = WordKey::of(text, word.size());
      remember(key, kernel_.hash(key), ids_of(text, word.size()));
    }
    for (std::size_t size = 2; size < std::min(run_ids_.size(), WordKey::kMaxSize + 1); ++size) {
      const std::string run(size, ' ');
      const WordKey key = WordKey::of(reinterpret_cast<const std::uint8_t*>(run.data()), size);
      remember(key, kernel_.hash(key), Ids(&run_ids_[size], 1));
    }
    if (!model_.whole_words().empty()) keep_unmerged(words);
    misses_ = 0;
  }

  // Tells the cutter of long words which whole words are not what merging makes of them.
  void keep_unmerged(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const auto* text = reinterpret_cast<const std::uint8_t*>(word.data());
      const auto id = model_.whole_words().find(text, word.size());
      many_ids_.resize(word.size());
      if (id && !(model_.encode(text, word.size(), many_ids_.data()) == 1 && many_ids_[0] == *id)) {
        long_word_cutter_.keep_whole(text, word.size());
      }
    }
  }

  void encode_document(const std::uint8_t* text, std::size_t size) override {
    specials_ += added_.counted.count(text, size);
    split(added_.raw, text, size, [&](const std::uint8_t* part, std::size_t part_size) {
      // What relies on valid UTF-8 could read behind the text if it were not.
      if (check_utf8_ && !is_utf8_(part, part_size)) return encode_bytes(part, part_size);
      const bool first = part == text;
      const std::string_view view(reinterpret_cast<const char*>(part), part_size);
      std::string_view normal = normalized(view, nullptr);
      // Several steps may make the same text of it, of which characters are from elsewhere.
      const bool is_same = normal == view && !(placer_.is_on() && options_.normalizer);
      if (is_same) return encode_normalized(part, part_size, first);
      if (placer_.is_on()) {
        places_.clear();
        place_characters(view, placer_.begin_of(part), &places_);
        normal = normalized(view, &places_);
        placer_.show_places(reinterpret_cast<const std::uint8_t*>(normal.data()), &places_);
      }
      const auto* begin = reinterpret_cast<const std::uint8_t*>(normal.data());
      const std::uint8_t* data_end = std::exchange(data_end_, begin + normal.size());
      encode_normalized(begin, normal.size(), first);
      placer_.show_document();
      data_end_ = data_end;
    });
  }

  std::string_view normalized(std::string_view text, Places* places) {
    if (options_.normalizer) {
      const std::string_view normal = options_.normalizer(text, places);
      if (normal.size() > kMaxDocument) {
        throw std::out_of_range("a document has 2^31 bytes or more");
      }
      return normal;
    }
    if (!options_.form || is_normal_quick(*options_.form, text)) return text;
    Places moved;
    Trail trail(text, places != nullptr ? *places : moved, &moved);
    normalize(*options_.form, text, normal_, places != nullptr ? &trail : nullptr);
    if (places != nullptr) *places = std::move(moved);
    return normal_;
  }

  // Encodes bytes that are not valid UTF-8, each as a pretoken of its own.
  void encode_bytes(const std::uint8_t* text, std::size_t size) {
    room(size);
    starts_[0] = 0;
    starts_[1] = 1;
    const std::size_t first = ids_->size();
    for (std::size_t i = 0; i < size; ++i) lookup(text + i, starts_, 1);
    place(first, text, size);
  }

  // `document_begins`: with the text.
  void encode_normalized(const std::uint8_t* text, std::size_t size, bool document_begins) {
    split(added_.normalized, text, size, [&](const std::uint8_t* part, std::size_t part_size) {
      const std::size_t first = ids_->size();
      if (prefixes_ && part[0] != ' ') {
        encode_prefixed(part, part_size);
        return place(first, part, part_size, 1);
      }
      encode_piece(part, part_size, document_begins && part == text);
      if (!laid_) place(first, part, part_size);
    });
  }

  // Encodes the text with a space in front.
  void encode_prefixed(const std::uint8_t* text, std::size_t size) {
    prefixed_.resize(1 + size);
    prefixed_[0] = ' ';
    std::memcpy(prefixed_.data() + 1, text, size);
    const std::uint8_t* data_end = std::exchange(data_end_, prefixed_.data() + 1 + size);
    encode_piece(prefixed_.data(), 1 + size, false);
    data_end_ = data_end;
  }

  // Encodes text without added tokens. `first`: the document begins here.
  void encode_piece(const std::uint8_t* text, std::size_t size, bool first) {
    if (laid_) return encode_laid(text, size, first);
    room(size);
    if (!cutter_) return encode_whole(text, size);
    cutter_->begin(text, size);
    std::size_t have = 0;
    do {
      std::size_t count = have + cutter_->next(starts_ + have);
      // The last pretoken ends where the next window begins, so it is looked up with that window.
      if (cutter_->done()) {
        starts_[count] = static_cast<std::uint32_t>(size);
      } else {
        --count;
      }
      lookup(text, starts_, count);
      starts_[0] = starts_[count];
      have = 1;
    } while (!cutter_->done());
  }

  // With words that are not the text in parts.
  void encode_laid(const std::uint8_t* text, std::size_t size, bool first) {
    const std::uint8_t* const data_end = data_end_;
    laid_->begin(text, size, first);
    Places* const places = placer_.is_on() ? &laid_places_ : nullptr;
    while (const std::size_t count = laid_->next(&words_, starts_, places)) {
      const std::size_t end = words_.size(), first_id = ids_->size();
      pad_keys(&words_);
      data_end_ = words_.data() + words_.size();
      room(end);
      lookup(words_.data(), starts_, count);
      if (places == nullptr) continue;
      token_sizes_.clear();
      for (std::size_t i = first_id; i < ids_->size(); ++i) {
        token_sizes_.push_back(placer_.size_of(static_cast<std::uint32_t>(ids_->data()[i])));
      }
      placer_.place_laid(token_sizes_, text, laid_places_);
    }
    data_end_ = data_end;
  }

  // With a pattern that cuts nothing.
  void encode_whole(const std::uint8_t* text, std::size_t size) {
    starts_[0] = 0;
    starts_[1] = static_cast<std::uint32_t>(size);
    lookup(text, starts_, 1);
  }

  // The kernel reads kKeySlack bytes from the start of a pretoken. Near the end of the data it gets
  // a padded copy.
  void lookup(const std::uint8_t* text, const std::uint32_t* starts, std::size_t count) {
    if (count == 0) return;
    if (data_end_ - (text + starts[count]) >= static_cast<std::ptrdiff_t>(kKeySlack)) {
      return run_lookup(text, starts, count);
    }
    const std::uint32_t begin = starts[0];
    const std::size_t size = starts[count] - begin;
    tail_.resize(size);
    std::memcpy(tail_.data(), text + begin, size);
    pad_keys(&tail_);
    for (std::size_t i = 0; i <= count; ++i) tail_starts_[i] = starts[i] - begin;
    run_lookup(tail_.data(), tail_starts_, count);
  }

  void run_lookup(const std::uint8_t* text, const std::uint32_t* starts, std::size_t count) {
    const std::size_t longs = kernel_.find_long(starts, count, longs_);
    if (longs == 0) return look_up(text, starts, count);
    const auto window = long_word_cutter_.prepare(text, {starts, count, nullptr}, {longs_, longs},
                                                  model_, mediums_, long_cache_);
    Lookup<Id, Out> lookup = lookup_with(window.probes);
    Out* out = ids_->data() + ids_->size();
    for (std::size_t at = 0; at < window.count; at += kMaxWindow) {
      out = run(lookup, text, window.starts + at, std::min(kMaxWindow, window.count - at), out);
    }
    ids_->resize(static_cast<std::size_t>(out - ids_->data()));
  }

  // A run of spaces that is tokens is in no other cache.
  Out* find_rare(const std::uint8_t* text, std::size_t size, Out* out) override {
    if (longest_run_ != 0 && is_space_run(text, size)) return write_run(size, out);
    if (MediumKey::fits(size)) return find_medium(text, size, out);
    return Base::find_rare(text, size, out);
  }

  // The word is in the cache of long words as well, in case another one takes its bucket.
  Out* find_medium(const std::uint8_t* text, std::size_t size, Out* out) {
    const MediumKey key = MediumKey::of(text, size);
    if (const auto* known = mediums_.find(key)) {
      return std::copy_n(known->ids, known->count(), out);
    }
    Out* const end = Base::find_rare(text, size, out);
    mediums_.insert(key, out, static_cast<std::size_t>(end - out));
    return end;
  }

  std::optional<Ids> ids_of(const std::uint8_t* text, std::size_t size) override {
    return Ids(word_ids_, encode_word(text, size));
  }

  Out* encode_huge(const std::uint8_t* text, std::size_t size, Out* out) override {
    ++misses_;
    many_ids_.resize(size);
    if (const auto whole = model_.whole_words().find(text, size))
      return copy_ids({&*whole, 1}, out);
    return copy_ids({many_ids_.data(), merge_long(text, size)}, out);
  }

  // Writes the ids of a word that is no whole one to many_ids_.
  std::size_t merge_long(const std::uint8_t* text, std::size_t size) {
    const auto merge_window = [this](const std::uint8_t* part, std::size_t part_size,
                                     std::uint32_t* ids) {
      if (part_size > LongWordCache::kMaxSize) return model_.encode(part, part_size, ids);
      const std::size_t count = merge(part, part_size);
      std::copy_n(word_ids_, count, ids);
      return count;
    };
    const std::size_t count =
        model_.sizes().empty() ? 0 : windows_.encode(text, size, many_ids_.data(), merge_window);
    return count != 0 ? count : model_.encode(text, size, many_ids_.data());
  }

  // Never called: ids_of() always gives ids, as merging looks at nothing outside of a word.
  Out* encode_in_context(const std::uint8_t*, std::size_t, Out*) override {
    throw std::logic_error("the ids of a word depend on the word alone");
  }

  // Writes the ids of a new word to word_ids_.
  std::size_t encode_word(const std::uint8_t* text, std::size_t size) {
    ++misses_;
    if (const auto whole = model_.whole_words().find(text, size)) {
      *word_ids_ = *whole;
      return 1;
    }
    return merge(text, size);
  }

  std::size_t merge(const std::uint8_t* text, std::size_t size) {
    if (size >= 2 && size <= kernel_.merge16_limit && model_.merge_table16()) {
      std::uint16_t ids[kMerge16Limit];
      const std::size_t count = kernel_.merge16(*model_.merge_table16(), text, size, ids);
      std::copy_n(ids, count, word_ids_);
      return count;
    }
    if (size >= 2 && size <= kernel_.merge32_limit) {
      return kernel_.merge32(model_.merge_table32(), model_.first_symbols(), text, size, word_ids_);
    }
    return model_.encode(text, size, word_ids_);
  }

  static bool is_space_run(const std::uint8_t* text, std::size_t size) {
    return size >= 2 && text[0] == ' ' && text[1] == ' ';
  }

  // Writes a run of spaces as tokens, the longest ones first. The scanner cuts runs such that no
  // single space is left at the end.
  Out* write_run(std::size_t size, Out* out) {
    for (; size > longest_run_; size -= longest_run_) *out++ = static_cast<Out>(run_ids_.back());
    *out++ = static_cast<Out>(run_ids_[size]);
    return out;
  }

  BpeModel model_;
  BpeOptions options_;
  Utf8Check is_utf8_;
  std::optional<LaidWords> laid_;  // where words are not the text in parts, else
  std::optional<Cutter> cutter_;   // this; none: nothing is cut
  bool prefixes_ = false;          // texts get a space in front
  bool check_utf8_ = false;
  AddedTokenGroups added_;
  std::size_t longest_run_ = 0;         // of spaces that is a token; 0: no such tokens
  std::vector<std::uint32_t> run_ids_;  // by number of spaces

  std::uint32_t starts_[kMaxWindow + kLongBlock] = {};
  std::uint32_t tail_starts_[kMaxWindow + kLongBlock] = {};
  std::uint16_t longs_[kMaxWindow];
  LongWordCutter long_word_cutter_;
  WindowMerger windows_;

  std::uint32_t word_ids_[LongWordCache::kMaxSize + kOutputSlack / sizeof(std::uint32_t)];
  std::vector<std::uint32_t> many_ids_;
  std::string normal_;
  Buffer<std::uint8_t> tail_, prefixed_, words_;
  Places places_;       // of what was normalized
  Places laid_places_;  // of words_, in the text that they are of
  std::vector<std::uint32_t> token_sizes_;
};

}  // namespace

std::unique_ptr<BpeEncoder> make_bpe_encoder(BpeModel model, std::vector<AddedToken> added,
                                             const std::vector<std::string>& words, bool wide,
                                             std::uint32_t vocab_size, const BpeOptions& options) {
  return make_cached_encoder<Encoder>(vocab_size, wide, std::move(model), std::move(added), words,
                                      options);
}

}  // namespace tokpack

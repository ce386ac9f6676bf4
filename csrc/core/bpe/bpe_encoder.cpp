#include "core/bpe/bpe_encoder.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/long_word_cutter.hpp"
#include "core/bpe/word_cache.hpp"
#include "core/text/nfc.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kCacheGrowth = 2;  // the word cache grows to this many times its first size

std::size_t cache_limit(std::size_t bytes) {
  return std::max(std::bit_floor(bytes), kCacheGrowth * 2 * sizeof(WordBucket<std::uint16_t>));
}
constexpr std::size_t kMaxDocument = std::numeric_limits<std::int32_t>::max();

// Id: the type of ids in the word cache. Out: the type of ids in the output.
template <class Id, class Out>
class Encoder final : public BpeEncoder {
 public:
  Encoder(BpeModel model, std::vector<AddedToken> added, const std::vector<std::string>& words,
          const BpeOptions& options)
      : model_(std::move(model)),
        options_(options),
        kernel_(bpe_kernel(options.level)),
        is_utf8_(utf8_check(options.level)),
        scanner_(scanner(options.level, options.pattern)),
        check_utf8_(options.nfc || needs_utf8(options.pattern)),
        cache_(cache_limit(options.cache_bytes) / kCacheGrowth, cache_limit(options.cache_bytes)) {
    set_added(std::move(added));
    seed(words);
  }

  void encode(std::span<const std::uint8_t> data, std::span<const Span> spans, const Frame& frame,
              const EncodedDocuments<std::uint16_t>& result) override {
    encode_as(data, spans, frame, result);
  }
  void encode(std::span<const std::uint8_t> data, std::span<const Span> spans, const Frame& frame,
              const EncodedDocuments<std::int32_t>& result) override {
    encode_as(data, spans, frame, result);
  }

  CacheInfo cache_info() const override {
    return {cache_.words(), cache_.bucket_count() * 64, merged_};
  }

 private:
  template <class T>
  void encode_as(std::span<const std::uint8_t> data, std::span<const Span> spans,
                 const Frame& frame, const EncodedDocuments<T>& result) {
    if constexpr (!std::is_same_v<T, Out>) {
      throw std::logic_error("this encoder writes ids of the other width");
    } else {
      std::size_t bytes = spans.size() * (frame.before.size() + frame.after.size());
      for (const Span& span : spans) {
        if (span.begin < 0 || span.end < span.begin ||
            static_cast<std::size_t>(span.end) > data.size()) {
          throw std::out_of_range("a document lies outside of its data");
        }
        const auto size = static_cast<std::size_t>(span.end - span.begin);
        if (size > kMaxDocument) throw std::out_of_range("a document has 2^31 bytes or more");
        bytes += size;
      }
      ids_ = result.ids;
      ids_->clear();
      room(bytes);
      data_end_ = data.data() + data.size();
      result.lengths->resize(spans.size());
      result.special->clear();
      for (std::size_t i = 0; i < spans.size(); ++i) {
        specials_ = 0;
        const std::size_t before = ids_->size();
        for (const std::uint32_t id : frame.before) append(id);
        const std::size_t first = ids_->size();
        encode_document(data.data() + spans[i].begin,
                        static_cast<std::size_t>(spans[i].end - spans[i].begin));
        if (ids_->size() == first) {
          ids_->resize(before);
        } else {
          for (const std::uint32_t id : frame.after) append(id);
        }
        (*result.lengths)[i] = static_cast<std::int32_t>(ids_->size() - before);
        result.special->insert(result.special->end(), specials_, static_cast<std::int64_t>(i));
      }
    }
  }

  void set_added(std::vector<AddedToken> added) {
    std::vector<AddedToken> raw, normalized, counted;
    for (AddedToken& token : added) {
      if (token.special && !options_.encode_specials) counted.push_back(token);
      (token.normalized ? normalized : raw).push_back(std::move(token));
    }
    if (!options_.encode_specials) {
      drop_apart_specials(raw);
      drop_apart_specials(normalized);
    }
    if (options_.pattern == Pattern::kGpt2) longest_run_ = longest_space_run(normalized);
    if (longest_run_ != 0) {
      run_ids_.resize(longest_run_ + 1);
      for (const AddedToken& token : normalized) run_ids_[token.content.size()] = token.id;
      normalized.clear();
    }
    raw_ = AddedTokenMatcher(std::move(raw));
    normalized_ = AddedTokenMatcher(std::move(normalized));
    counted_ = AddedTokenMatcher(std::move(counted));
  }

  // Enters words into the cache. Their ids come from merging: a token of the vocabulary is not
  // always what merging makes of its bytes.
  void seed(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      if (word.empty() || word.size() > WordKey::kMaxSize) continue;
      std::uint8_t text[kKeySlack] = {};
      std::memcpy(text, word.data(), word.size());
      if (longest_run_ != 0 && is_space_run(text, word.size())) continue;
      const WordKey key = WordKey::of(text, word.size());
      const std::size_t count = encode_word(text, word.size());
      cache_.insert(key, kernel_.hash(key), word_ids_, count, kernel_.hash);
    }
    for (std::size_t size = 2; size < std::min(run_ids_.size(), WordKey::kMaxSize + 1); ++size) {
      const std::string run(size, ' ');
      const WordKey key = WordKey::of(reinterpret_cast<const std::uint8_t*>(run.data()), size);
      cache_.insert(key, kernel_.hash(key), &run_ids_[size], 1, kernel_.hash);
    }
    if (!model_.whole_words().empty()) keep_unmerged(words);
    merged_ = 0;
  }

  // Tells which whole words merging does not give.
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

  // Splits the text at the matches; calls piece() for what lies between.
  template <class Piece>
  void split(const AddedTokenMatcher& matcher, const std::uint8_t* text, std::size_t size,
             Piece&& piece) {
    std::size_t from = 0, at = 0;
    while (!matcher.empty()) {
      const auto match = matcher.find(text, size, at);
      if (match.begin == size) break;
      at = match.end;
      // As text it is found all the same, so that no token is found that begins within it.
      if (match.special && !options_.encode_specials) continue;
      if (match.begin > from) piece(text + from, match.begin - from);
      append(match.id);
      specials_ += match.special;
      from = match.end;
    }
    if (from < size) piece(text + from, size - from);
  }

  void encode_document(const std::uint8_t* text, std::size_t size) {
    if (!counted_.empty()) {
      for (std::size_t at = 0;; ++specials_) {
        const auto match = counted_.find(text, size, at);
        if (match.begin == size) break;
        at = match.end;
      }
    }
    split(raw_, text, size, [&](const std::uint8_t* part, std::size_t part_size) {
      // With anything else, what relies on valid UTF-8 could read behind the text.
      if (check_utf8_ && !is_utf8_(part, part_size)) return encode_bytes(part, part_size);
      const std::string_view view(reinterpret_cast<const char*>(part), part_size);
      if (!options_.nfc || is_nfc_quick(view)) return encode_normalized(part, part_size);
      nfc(view, normal_);
      const auto* normal = reinterpret_cast<const std::uint8_t*>(normal_.data());
      const std::uint8_t* data_end = std::exchange(data_end_, normal + normal_.size());
      encode_normalized(normal, normal_.size());
      data_end_ = data_end;
    });
  }

  // Encodes bytes that are not valid UTF-8, each as a pretoken.
  void encode_bytes(const std::uint8_t* text, std::size_t size) {
    room(size);
    starts_[0] = 0;
    starts_[1] = 1;
    for (std::size_t i = 0; i < size; ++i) lookup(text + i, starts_, 1);
  }

  void encode_normalized(const std::uint8_t* text, std::size_t size) {
    split(normalized_, text, size, [&](const std::uint8_t* part, std::size_t part_size) {
      room(part_size);
      if (scanner_ != nullptr) {
        encode_scanned(part, part_size);
      } else {
        encode_whole(part, part_size);
      }
    });
  }

  void encode_scanned(const std::uint8_t* text, std::size_t size) {
    Scan scan{};
    scan.text = text;
    scan.size = size;
    scan.longest_run = longest_run_;
    std::size_t have = 0;
    do {
      std::size_t count = have + scanner_(scan, starts_ + have);
      // The last pretoken ends where the next window begins, so it is looked up with that window.
      if (scan.begin >= size) {
        starts_[count] = static_cast<std::uint32_t>(size);
      } else {
        --count;
      }
      lookup(text, starts_, count);
      starts_[0] = starts_[count];
      have = 1;
    } while (scan.begin < size);
  }

  // A pattern that cuts nothing.
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
    tail_.resize(size + kKeySlack);
    std::memcpy(tail_.data(), text + begin, size);
    std::memset(tail_.data() + size, 0, kKeySlack);
    for (std::size_t i = 0; i <= count; ++i) tail_starts_[i] = starts[i] - begin;
    run_lookup(tail_.data(), tail_starts_, count);
  }

  void run_lookup(const std::uint8_t* text, const std::uint32_t* starts, std::size_t count) {
    const std::size_t longs = kernel_.find_long(starts, count, longs_);
    if (longs == 0) return look_up(text, starts, count);
    const auto window =
        long_word_cutter_.prepare(text, {starts, count}, {longs_, longs}, model_, long_cache_);
    for (std::size_t at = 0; at < window.count; at += kMaxWindow) {
      look_up(text, window.starts + at, std::min(kMaxWindow, window.count - at));
    }
  }

  void look_up(const std::uint8_t* text, const std::uint32_t* starts, std::size_t count) {
    Lookup<Id, Out> cache{cache_.buckets(), cache_.mask(), this, &rare};
    lookup_ = &cache;
    Out* end = ids_->data() + ids_->size();
    if constexpr (std::is_same_v<Out, std::uint16_t>) {
      end = kernel_.lookup16(cache, text, starts, count, end);
    } else if constexpr (std::is_same_v<Id, std::uint16_t>) {
      end = kernel_.lookup16to32(cache, text, starts, count, end);
    } else {
      end = kernel_.lookup32(cache, text, starts, count, end);
    }
    ids_->resize(static_cast<std::size_t>(end - ids_->data()));
  }

  static Out* rare(void* owner, const std::uint8_t* text, std::size_t size, Out* out) {
    return static_cast<Encoder*>(owner)->find_rare(text, size, out);
  }

  // Encodes a pretoken that is not in its own bucket of the word cache: a run of spaces, a word in
  // the neighbouring bucket, a long word, one of many ids, or a new word.
  Out* find_rare(const std::uint8_t* text, std::size_t size, Out* out) {
    if (longest_run_ != 0 && is_space_run(text, size)) return write_run(size, out);
    if (size > WordKey::kMaxSize) return encode_long(text, size, out);
    const WordKey key = WordKey::of(text, size);
    const std::uint64_t hash = kernel_.hash(key);
    const auto found = cache_.find_displaced(key, hash);
    if (found.slot != nullptr) return copy_ids(*found.slot, out);
    if (found.elsewhere) return encode_long(text, size, out);
    const std::size_t count = encode_word(text, size);
    cache_.insert(key, hash, word_ids_, count, kernel_.hash);
    lookup_->buckets = cache_.buckets();
    lookup_->mask = cache_.mask();
    return copy_ids(word_ids_, count, out);
  }

  // Encodes a word that does not fit the word cache.
  Out* encode_long(const std::uint8_t* text, std::size_t size, Out* out) {
    if (size > LongWordCache::kMaxSize) {
      ++merged_;
      many_ids_.resize(size);
      const auto whole = model_.whole_words().find(text, size);
      if (whole) return copy_ids(&*whole, 1, out);
      return copy_ids(many_ids_.data(), model_.encode(text, size, many_ids_.data()), out);
    }
    const std::uint64_t hash = LongWordCache::hash(text, size);
    std::size_t count = 0;
    if (const std::uint32_t* ids = long_cache_.find(text, size, hash, &count)) {
      return copy_ids(ids, count, out);
    }
    count = encode_word(text, size);
    long_cache_.insert(text, size, hash, word_ids_, count);
    return copy_ids(word_ids_, count, out);
  }

  // Writes the ids of a new word to word_ids_.
  std::size_t encode_word(const std::uint8_t* text, std::size_t size) {
    ++merged_;
    const WholeWords& words = model_.whole_words();
    if (const auto whole =
            size > WordKey::kMaxSize ? words.find_long(text, size) : words.find(text, size)) {
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
      return kernel_.merge32(model_.merge_table32(), text, size, word_ids_);
    }
    return model_.encode(text, size, word_ids_);
  }

  static bool is_space_run(const std::uint8_t* text, std::size_t size) {
    return size >= 2 && text[0] == ' ' && text[1] == ' ';
  }

  // A run of spaces as tokens, the longest ones first. The scanner never leaves a rest of one
  // space.
  Out* write_run(std::size_t size, Out* out) {
    for (; size > longest_run_; size -= longest_run_) *out++ = static_cast<Out>(run_ids_.back());
    *out++ = static_cast<Out>(run_ids_[size]);
    return out;
  }

  static Out* copy_ids(const std::uint32_t* ids, std::size_t count, Out* out) {
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Out>(ids[i]);
    return out + count;
  }

  static Out* copy_ids(const WordSlot<Id>& slot, Out* out) {
    constexpr std::size_t kFirst = WordSlot<Id>::kMaxIds;
    const std::size_t count = slot.count();
    out = std::copy_n(slot.ids, std::min(count, kFirst), out);
    return count > kFirst ? std::copy_n((&slot)[1].ids, count - kFirst, out) : out;
  }

  void append(std::uint32_t id) { ids_->push_back(static_cast<Out>(id)); }

  // A token has at least one byte, so this much is enough for a text of that size.
  void room(std::size_t bytes) { ids_->reserve(ids_->size() + bytes + kOutputSlack); }

  BpeModel model_;
  BpeOptions options_;
  const BpeKernel& kernel_;
  Utf8Check is_utf8_;
  Scanner scanner_;  // null: nothing is cut
  bool check_utf8_;
  WordCache<Id> cache_;
  LongWordCache long_cache_;
  AddedTokenMatcher raw_, normalized_, counted_;
  std::size_t longest_run_ = 0;
  std::vector<std::uint32_t> run_ids_;  // by number of spaces

  Buffer<Out>* ids_ = nullptr;
  const std::uint8_t* data_end_ = nullptr;
  Lookup<Id, Out>* lookup_ = nullptr;  // of the call of look_up() that is running
  std::size_t specials_ = 0;
  std::size_t merged_ = 0;
  std::uint32_t starts_[kMaxWindow + kLongBlock] = {};
  std::uint32_t tail_starts_[kMaxWindow + kLongBlock] = {};
  std::uint16_t longs_[kMaxWindow];
  LongWordCutter long_word_cutter_;

  std::uint32_t word_ids_[LongWordCache::kMaxSize + kOutputSlack / sizeof(std::uint32_t)];
  std::vector<std::uint32_t> many_ids_;
  std::string normal_;
  Buffer<std::uint8_t> tail_;
};

}  // namespace

std::unique_ptr<BpeEncoder> make_bpe_encoder(BpeModel model, std::vector<AddedToken> added,
                                             const std::vector<std::string>& words, bool wide,
                                             std::uint32_t vocab_size, const BpeOptions& options) {
  const bool narrow_ids = vocab_size <= 65536;
  if (!wide && !narrow_ids) {
    throw std::invalid_argument("a vocabulary of " + std::to_string(vocab_size) +
                                " tokens does not fit uint16");
  }
  if (!wide) {
    return std::make_unique<Encoder<std::uint16_t, std::uint16_t>>(
        std::move(model), std::move(added), words, options);
  }
  if (narrow_ids) {
    return std::make_unique<Encoder<std::uint16_t, std::int32_t>>(std::move(model),
                                                                  std::move(added), words, options);
  }
  return std::make_unique<Encoder<std::uint32_t, std::int32_t>>(std::move(model), std::move(added),
                                                                words, options);
}

}  // namespace tokpack

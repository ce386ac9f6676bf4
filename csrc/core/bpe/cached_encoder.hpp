// What encoders that look words up in a cache share: documents and their frames, added tokens, the
// lookup by the kernel, and what happens to words that it does not find.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "core/base/buffer.hpp"
#include "core/base/cpu.hpp"
#include "core/bpe/bpe_encoder.hpp"
#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/word_cache.hpp"

namespace tokpack {

// Puts zeros behind words, so that kKeySlack bytes can be read from the start of each.
inline void pad_keys(Buffer<std::uint8_t>* words) {
  const std::size_t end = words->size();
  words->resize(end + kKeySlack);
  std::memset(words->data() + end, 0, kKeySlack);
}

// Id: the type of ids in the word cache. Out: the type of ids in the output.
template <class Id, class Out>
class CachedEncoder : public BpeEncoder {
 public:
  void encode(std::span<const std::uint8_t> data, std::span<const Span> spans, const Frame& frame,
              const EncodedDocuments<std::uint16_t>& result) final {
    encode_as(data, spans, frame, result);
  }
  void encode(std::span<const std::uint8_t> data, std::span<const Span> spans, const Frame& frame,
              const EncodedDocuments<std::int32_t>& result) final {
    encode_as(data, spans, frame, result);
  }

  CacheInfo cache_info() const final {
    return {cache_.words(), cache_.bucket_count() * sizeof(WordBucket<Id>), misses_};
  }

 protected:
  static constexpr std::size_t kMaxDocument = std::numeric_limits<std::int32_t>::max();
  using Ids = std::span<const std::uint32_t>;

  CachedEncoder(Level level, std::size_t cache_bytes)
      : kernel_(bpe_kernel(level)),
        cache_(table_bytes(cache_bytes)),
        mediums_(table_bytes(cache_bytes) / kMediumShare) {}

  // Appends a document's ids to ids_, and adds the number of special tokens in it to specials_.
  virtual void encode_document(const std::uint8_t* text, std::size_t size) = 0;

  // The ids of a word of at most LongWordCache::kMaxSize bytes, valid until the next call; nothing
  // when they depend on what is before the word.
  virtual std::optional<Ids> ids_of(const std::uint8_t* text, std::size_t size) = 0;

  // Write the ids of a word: one for which ids_of() gives nothing, and one that is too long for it.
  // They return the end of the ids.
  virtual Out* encode_in_context(const std::uint8_t* text, std::size_t size, Out* out) = 0;
  virtual Out* encode_huge(const std::uint8_t* text, std::size_t size, Out* out) = 0;

  // Encodes a word that the kernel did not find: one that is in the neighbouring bucket of the word
  // cache, is too long for it or has too many ids, or is new.
  virtual Out* find_rare(const std::uint8_t* text, std::size_t size, Out* out) {
    if (size > WordKey::kMaxSize) return encode_long(text, size, out);
    const WordKey key = WordKey::of(text, size);
    const std::uint64_t hash = kernel_.hash(key);
    const auto found = cache_.find_displaced(key, hash);
    if (found.slot != nullptr) return WordBucket<Id>::copy_ids(*found.slot, out);
    if (found.elsewhere) return encode_long(text, size, out);
    const std::optional<Ids> ids = ids_of(text, size);
    remember(key, hash, ids);
    return ids ? copy_ids(*ids, out) : encode_long(text, size, out);
  }

  // Enters a word into the word cache, or where to look for it.
  void remember(const WordKey& key, std::uint64_t hash, const std::optional<Ids>& ids) {
    cache_.insert(key, hash, ids ? ids->data() : nullptr, ids ? ids->size() : kElsewhere);
  }

  // Appends the ids of words, as the kernel's lookup takes them.
  void look_up(const std::uint8_t* text, const std::uint32_t* starts, std::size_t count) {
    Lookup<Id, Out> lookup = lookup_with(nullptr);
    Out* const end = run(lookup, text, starts, count, ids_->data() + ids_->size());
    ids_->resize(static_cast<std::size_t>(end - ids_->data()));
  }

  Lookup<Id, Out> lookup_with(const MediumProbe* probes) {
    return {cache_.buckets(), cache_.mask(), mediums_.buckets(), probes, this, &rare};
  }

  // Writes the ids of words and returns their end.
  Out* run(Lookup<Id, Out>& lookup, const std::uint8_t* text, const std::uint32_t* starts,
           std::size_t count, Out* out) {
    if constexpr (std::is_same_v<Out, std::uint16_t>) {
      return kernel_.lookup16(lookup, text, starts, count, out);
    } else if constexpr (std::is_same_v<Id, std::uint16_t>) {
      return kernel_.lookup16to32(lookup, text, starts, count, out);
    } else {
      return kernel_.lookup32(lookup, text, starts, count, out);
    }
  }

  void append(std::uint32_t id) { ids_->push_back(static_cast<Out>(id)); }

  // split_at_tokens(), with the ids of the tokens appended.
  template <class Piece>
  void split(const AddedTokenMatcher& matcher, const std::uint8_t* text, std::size_t size,
             Piece&& piece) {
    split_at_tokens(matcher, text, size, piece,
                    [&](const AddedTokenMatcher::Match& match, const std::uint8_t* begin,
                        const std::uint8_t* end) {
                      append(match.id);
                      if (placer_.is_on()) placer_.place_one(begin, end);
                      specials_ += match.special;
                    });
  }

  // Places the ids from the index `first` on, which are those of a text with `prefix` in front.
  void place(std::size_t first, const std::uint8_t* text, std::size_t size,
             std::size_t prefix = 0) {
    if (!placer_.is_on()) return;
    placer_.place(std::span<const Out>(ids_->data() + first, ids_->size() - first), text, size,
                  prefix);
  }

  // Of each run of `id` in ids_, from the index `from` on, leaves one.
  void join_runs(std::size_t from, std::uint32_t id) {
    const auto wanted = static_cast<Out>(id);
    Out* const end = ids_->data() + ids_->size();
    Out* const first = std::find(ids_->data() + from, end, wanted);
    Out* const kept = std::unique(
        first, end, [&](Out left, Out right) { return left == wanted && right == wanted; });
    ids_->resize(static_cast<std::size_t>(kept - ids_->data()));
  }

  // Makes room in ids_ for this many more, and for what the kernel writes behind them.
  void room(std::size_t ids) { ids_->reserve(ids_->size() + ids + kOutputSlack); }

  static Out* copy_ids(Ids ids, Out* out) {
    return std::transform(ids.begin(), ids.end(), out,
                          [](std::uint32_t id) { return static_cast<Out>(id); });
  }

  const BpeKernel& kernel_;
  WordCache<Id> cache_;
  MediumWordCache<Id> mediums_;
  LongWordCache long_cache_;
  Buffer<Out>* ids_ = nullptr;              // of the call of encode() that is running
  const std::uint8_t* data_end_ = nullptr;  // of its data
  std::size_t specials_ = 0;                // in the document
  std::size_t misses_ = 0;
  TokenPlacer placer_;

 private:
  static constexpr std::size_t kMediumShare = 8;  // the cache of medium words is this part of it
  // A number of ids that fits no bucket: the word's ids are in the cache of long words. A word
  // there without ids is one whose ids depend on the text before it.
  static constexpr std::size_t kElsewhere = std::numeric_limits<std::size_t>::max();

  static constexpr std::size_t kLongRun = std::size_t{128} << 20;  // bytes: half a second

  static std::size_t table_bytes(std::size_t cache_bytes) {
    return std::max(std::bit_floor(cache_bytes), 2 * sizeof(WordBucket<Id>));
  }

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
      count_bytes(bytes);
      ids_ = result.ids;
      ids_->clear();
      room(bytes);
      data_end_ = data.data() + data.size();
      result.lengths->resize(spans.size());
      result.special->clear();
      placer_.set_output(result.offsets);
      if (placer_.is_on()) {
        result.offsets->clear();
        result.unplaced->clear();
      }
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const std::size_t before = ids_->size();
        for (const std::uint32_t id : frame.before) append(id);
        const std::size_t first = ids_->size();
        specials_ = 0;
        const std::uint8_t* text = data.data() + spans[i].begin;
        const auto size = static_cast<std::size_t>(spans[i].end - spans[i].begin);
        if (placer_.is_on()) {
          placer_.begin_document(text, size);
          placer_.place_outside(frame.before.size(), 0);
        }
        encode_document(text, size);
        if (ids_->size() == first) {
          ids_->resize(before);
        } else {
          for (const std::uint32_t id : frame.after) append(id);
        }
        if (ids_->size() - before > kMaxDocument) {
          throw std::out_of_range("a document is too long");
        }
        if (placer_.is_on()) complete_offsets(result, i, before, frame.after.size(), size);
        (*result.lengths)[i] = static_cast<std::int32_t>(ids_->size() - before);
        result.special->insert(result.special->end(), specials_, static_cast<std::int64_t>(i));
      }
    }
  }

  // Huge pages that were not at hand at first are worth waiting for in a long run.
  void count_bytes(std::size_t bytes) {
    if (bytes_ >= kLongRun || (bytes_ += bytes) < kLongRun) return;
    cache_.make_huge();
    mediums_.make_huge();
    long_cache_.make_huge();
  }

  // Completes the offsets of a document of `size` bytes whose ids begin at `first`, `behind` of
  // which are behind its text. Those of an encoder that places none are not known.
  void complete_offsets(const EncodedDocuments<Out>& result, std::size_t document,
                        std::size_t first, std::size_t behind, std::size_t size) {
    Buffer<TokenOffset>& offsets = *result.offsets;
    if (ids_->size() == first) return offsets.resize(first);
    placer_.place_outside(behind, size);
    const bool is_placed = placer_.is_placed() && offsets.size() == ids_->size();
    if (!is_placed) result.unplaced->push_back(static_cast<std::int64_t>(document));
    while (offsets.size() < ids_->size()) offsets.push_back({0, 0});
  }

  static Out* rare(void* owner, const std::uint8_t* text, std::size_t size, Out* out) {
    return static_cast<CachedEncoder*>(owner)->find_rare(text, size, out);
  }

  // Encodes a word that does not fit the word cache.
  Out* encode_long(const std::uint8_t* text, std::size_t size, Out* out) {
    if (size > LongWordCache::kMaxSize) return encode_huge(text, size, out);
    const std::uint64_t hash = LongWordCache::hash(text, size);
    std::size_t count = 0;
    if (const std::uint32_t* known = long_cache_.find(text, size, hash, &count)) {
      return count == 0 ? encode_in_context(text, size, out) : copy_ids({known, count}, out);
    }
    const std::optional<Ids> ids = ids_of(text, size);
    const std::uint32_t none = 0;
    long_cache_.insert(text, size, hash, ids ? ids->data() : &none, ids ? ids->size() : 0);
    return ids ? copy_ids(*ids, out) : encode_in_context(text, size, out);
  }

  std::size_t bytes_ = 0;  // encoded so far
};

// The encoder Derived<Id, Out> whose types hold `vocab_size` ids, as int32 if `wide`, else as
// uint16. Throws std::invalid_argument when they do not.
template <template <class, class> class Derived, class... Arguments>
std::unique_ptr<BpeEncoder> make_cached_encoder(std::size_t vocab_size, bool wide,
                                                Arguments&&... arguments) {
  const bool narrow_ids = vocab_size <= 65536;
  if (!wide && !narrow_ids) {
    throw std::invalid_argument("a vocabulary of " + std::to_string(vocab_size) +
                                " tokens does not fit uint16");
  }
  if (vocab_size > std::size_t{1} << 24) {
    throw std::invalid_argument("a vocabulary of " + std::to_string(vocab_size) +
                                " tokens is too large: ids have 24 bits");
  }
  if (!wide) {
    return std::make_unique<Derived<std::uint16_t, std::uint16_t>>(
        std::forward<Arguments>(arguments)...);
  }
  if (narrow_ids) {
    return std::make_unique<Derived<std::uint16_t, std::int32_t>>(
        std::forward<Arguments>(arguments)...);
  }
  return std::make_unique<Derived<std::uint32_t, std::int32_t>>(
      std::forward<Arguments>(arguments)...);
}

}  // namespace tokpack

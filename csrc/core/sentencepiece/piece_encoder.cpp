#include "core/sentencepiece/piece_encoder.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/bpe/added_tokens.hpp"
#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/word_cache.hpp"
#include "core/sentencepiece/folded.hpp"
#include "core/sentencepiece/piece_bpe.hpp"
#include "core/sentencepiece/piece_cutter.hpp"
#include "core/sentencepiece/piece_normalizer.hpp"
#include "core/sentencepiece/piece_unigram.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kMaxText = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kCacheGrowth = 2;  // the word cache grows to this many times its first size

// A number of ids that fits no bucket: the word is to be found in the cache of long words, where no
// ids means that they depend on what is before the word.
constexpr std::size_t kElsewhere = std::numeric_limits<std::size_t>::max();

std::size_t cache_limit(std::size_t bytes) {
  return std::max(std::bit_floor(bytes), kCacheGrowth * 2 * sizeof(WordBucket<std::uint16_t>));
}

std::vector<AddedToken> control_symbols(const PieceModelFile& model) {
  std::vector<AddedToken> symbols;
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::kControl) symbols.push_back({piece.text, 0, true, false});
  }
  return symbols;
}

// Id: the type of ids in the word cache. Out: the type of ids in the output.
template <class Id, class Out>
class Encoder final : public BpeEncoder {
 public:
  Encoder(const PieceModelFile& model, std::size_t cache_bytes, Level level)
      : kernel_(bpe_kernel(level)),
        normalizer_(model),
        cutter_(model),
        unknown_(model.unknown),
        byte_fallback_(model.byte_fallback),
        control_(control_symbols(model)),
        cache_(cache_limit(cache_bytes) / kCacheGrowth, cache_limit(cache_bytes)) {
    if (model.type == PieceModelType::kBpe) {
      bpe_.emplace(model);
    } else {
      unigram_.emplace(model);
    }
    seed(model);
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
    return {cache_.words(), cache_.bucket_count() * sizeof(WordBucket<Id>), misses_};
  }

 private:
  template <class T>
  void encode_as(std::span<const std::uint8_t> data, std::span<const Span> spans,
                 const Frame& frame, const EncodedDocuments<T>& result) {
    if constexpr (!std::is_same_v<T, Out>) {
      throw std::logic_error("this encoder writes ids of the other width");
    } else {
      for (const Span& span : spans) {
        if (span.begin < 0 || span.end < span.begin ||
            static_cast<std::size_t>(span.end) > data.size()) {
          throw std::out_of_range("a document lies outside of its data");
        }
      }
      ids_ = result.ids;
      ids_->clear();
      result.lengths->resize(spans.size());
      result.special->clear();
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const std::size_t before = ids_->size();
        const std::uint8_t* text = data.data() + spans[i].begin;
        const auto size = static_cast<std::size_t>(spans[i].end - spans[i].begin);
        result.special->insert(result.special->end(), count_control(text, size),
                               static_cast<std::int64_t>(i));
        for (const std::uint32_t id : frame.before) ids_->push_back(static_cast<Out>(id));
        const std::size_t first = ids_->size();
        encode_document(text, size);
        if (!byte_fallback_) join_unknown(first);
        if (ids_->size() == first) {
          ids_->resize(before);
        } else {
          for (const std::uint32_t id : frame.after) ids_->push_back(static_cast<Out>(id));
        }
        if (ids_->size() - before > kMaxText) throw std::out_of_range("a document is too long");
        (*result.lengths)[i] = static_cast<std::int32_t>(ids_->size() - before);
      }
    }
  }

  std::size_t count_control(const std::uint8_t* text, std::size_t size) const {
    std::size_t count = 0;
    for (std::size_t at = 0; !control_.empty(); ++count) {
      const auto match = control_.find(text, size, at);
      if (match.begin == size) break;
      at = match.end;
    }
    return count;
  }

  void encode_document(const std::uint8_t* text, std::size_t size) {
    text_.clear();
    if (size > kMaxText) throw std::out_of_range("a document has 2^31 bytes or more");
    normalizer_.append(text, size, &text_);
    const std::size_t end = text_.size();
    if (end > kMaxText) throw std::out_of_range("a document has 2^31 bytes or more");
    text_.resize(end + kKeySlack);
    std::memset(text_.data() + end, 0, kKeySlack);
    sum_ = 0;
    summed_ = ids_->size();
    for (std::size_t at = 0; at < end;) {
      const std::size_t begin = at;
      const std::size_t count = cutter_.cut(text_.data(), end, &at, kWindow, starts_);
      starts_[count] = static_cast<std::uint32_t>(at);
      // A space may be unknown, and then three bytes.
      ids_->reserve(ids_->size() + 3 * (at - begin) + kOutputSlack);
      if (unigram_) {
        look_up_summing(starts_, count);
      } else {
        look_up(starts_, count);
      }
    }
  }

  // What the word cache has of Unigram's words holds while the sum of scores is not set back.
  void look_up_summing(const std::uint32_t* starts, std::size_t count) {
    const std::size_t before = ids_->size();
    const float sum = sum_;
    peak_ = std::abs(sum);
    look_up(starts, count);
    sum_up(ids_->data() + ids_->size());
    const float in_a_word = static_cast<float>(LongWordCache::kMaxSize) * unigram_->largest();
    if (peak_ + in_a_word < PieceUnigram::kReset) return;
    sum_ = sum;
    ids_->resize(before);
    for (std::size_t i = 0; i < count; ++i) {
      word_.clear();
      unigram_->encode_after(view(text_.data() + starts[i], starts[i + 1] - starts[i]), &sum_,
                             &word_);
      for (const std::uint32_t id : word_) ids_->push_back(static_cast<Out>(id));
    }
    summed_ = ids_->size();
  }

  // Adds the scores of the ids of this document up to `end`, as floats in their order.
  void sum_up(const Out* end) {
    for (const Out* id = ids_->data() + summed_; id < end; ++id) {
      sum_ += unigram_->score(static_cast<std::uint32_t>(*id));
      peak_ = std::max(peak_, std::abs(sum_));
    }
    summed_ = static_cast<std::size_t>(end - ids_->data());
  }

  void look_up(const std::uint32_t* starts, std::size_t count) {
    Lookup<Id, Out> lookup{cache_.buckets(), cache_.mask(), this, &rare};
    lookup_ = &lookup;
    Out* end = ids_->data() + ids_->size();
    if constexpr (std::is_same_v<Out, std::uint16_t>) {
      end = kernel_.lookup16(lookup, text_.data(), starts, count, end);
    } else if constexpr (std::is_same_v<Id, std::uint16_t>) {
      end = kernel_.lookup16to32(lookup, text_.data(), starts, count, end);
    } else {
      end = kernel_.lookup32(lookup, text_.data(), starts, count, end);
    }
    ids_->resize(static_cast<std::size_t>(end - ids_->data()));
  }

  static Out* rare(void* owner, const std::uint8_t* text, std::size_t size, Out* out) {
    return static_cast<Encoder*>(owner)->find_rare(text, size, out);
  }

  // Encodes a word that is not in its own bucket of the cache: one in the neighbouring bucket, a
  // long one, one of many ids, or a new one.
  Out* find_rare(const std::uint8_t* text, std::size_t size, Out* out) {
    if (size > WordKey::kMaxSize) return encode_long(text, size, out);
    const WordKey key = WordKey::of(text, size);
    const std::uint64_t hash = kernel_.hash(key);
    const auto found = cache_.find_displaced(key, hash);
    if (found.slot != nullptr) return copy_ids(*found.slot, out);
    if (found.elsewhere) return encode_long(text, size, out);
    const bool known = find_pieces(text, size);
    cache_.insert(key, hash, word_.data(), known ? word_.size() : kElsewhere, kernel_.hash);
    lookup_->buckets = cache_.buckets();
    lookup_->mask = cache_.mask();
    return known ? copy_ids(word_.data(), word_.size(), out) : encode_long(text, size, out);
  }

  // Encodes a word that does not fit the word cache.
  Out* encode_long(const std::uint8_t* text, std::size_t size, Out* out) {
    if (size > LongWordCache::kMaxSize) {
      if (unigram_) return encode_after(text, size, out);
      find_pieces(text, size);
      return copy_ids(word_.data(), word_.size(), out);
    }
    const std::uint64_t hash = LongWordCache::hash(text, size);
    std::size_t count = 0;
    if (const std::uint32_t* ids = long_cache_.find(text, size, hash, &count)) {
      return count == 0 ? encode_after(text, size, out) : copy_ids(ids, count, out);
    }
    const bool known = find_pieces(text, size);
    long_cache_.insert(text, size, hash, word_.data(), word_.size());
    return known ? copy_ids(word_.data(), word_.size(), out) : encode_after(text, size, out);
  }

  // Encodes a word whose ids depend on what is before it.
  Out* encode_after(const std::uint8_t* text, std::size_t size, Out* out) {
    sum_up(out);
    word_.clear();
    unigram_->encode_after(view(text, size), &sum_, &word_);
    peak_ = std::max(peak_, std::abs(sum_));
    summed_ += word_.size();
    return copy_ids(word_.data(), word_.size(), out);
  }

  // Writes the ids of a new word to word_; none and false when they depend on what is before it.
  bool find_pieces(const std::uint8_t* text, std::size_t size) {
    ++misses_;
    word_.clear();
    if (unigram_) return unigram_->encode(view(text, size), &word_);
    bpe_->encode(view(text, size), &word_);
    return true;
  }

  static std::string_view view(const std::uint8_t* text, std::size_t size) {
    return {reinterpret_cast<const char*>(text), size};
  }

  // Without byte fallback a run of unknown characters is one token.
  void join_unknown(std::size_t from) {
    const auto unknown = static_cast<Out>(unknown_);
    Out* const end = ids_->data() + ids_->size();
    Out* const first = std::find(ids_->data() + from, end, unknown);
    Out* const kept = std::unique(
        first, end, [&](Out left, Out right) { return left == unknown && right == unknown; });
    ids_->resize(static_cast<std::size_t>(kept - ids_->data()));
  }

  // Enters the pieces themselves into the cache.
  void seed(const PieceModelFile& model) {
    for (const Piece& piece : model.pieces) {
      if (!is_usable(piece)) continue;
      const std::string text = folded(piece.text);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
      if (text.size() > WordKey::kMaxSize) continue;
      const WordKey key = WordKey::of(bytes, text.size());
      if (!find_pieces(bytes, text.size())) continue;
      cache_.insert(key, kernel_.hash(key), word_.data(), word_.size(), kernel_.hash);
    }
    misses_ = 0;
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

  const BpeKernel& kernel_;
  PieceNormalizer normalizer_;
  PieceCutter cutter_;
  std::optional<PieceBpe> bpe_;  // one of the two
  std::optional<PieceUnigram> unigram_;
  std::uint32_t unknown_;
  bool byte_fallback_;
  AddedTokenMatcher control_;
  WordCache<Id> cache_;
  LongWordCache long_cache_;

  Buffer<Out>* ids_ = nullptr;
  Lookup<Id, Out>* lookup_ = nullptr;  // of the call of look_up() that is running
  Buffer<std::uint8_t> text_;          // the normalized document, and kKeySlack zeros
  std::uint32_t starts_[kWindow + 1 + kLongBlock] = {};
  std::vector<std::uint32_t> word_;
  float sum_ = 0;           // of the scores of the document's ids
  std::size_t summed_ = 0;  // how many of ids_ are in the sum, or in earlier documents
  float peak_ = 0;          // the largest sum of a window, whatever its sign
  std::size_t misses_ = 0;
};

}  // namespace

std::unique_ptr<BpeEncoder> make_piece_encoder(const PieceModelFile& model, bool wide,
                                               std::size_t cache_bytes, Level level) {
  const bool narrow_ids = model.pieces.size() <= 65536;
  if (!wide && !narrow_ids) {
    throw std::invalid_argument("a vocabulary of " + std::to_string(model.pieces.size()) +
                                " pieces does not fit uint16");
  }
  if (!wide) {
    return std::make_unique<Encoder<std::uint16_t, std::uint16_t>>(model, cache_bytes, level);
  }
  if (narrow_ids) {
    return std::make_unique<Encoder<std::uint16_t, std::int32_t>>(model, cache_bytes, level);
  }
  return std::make_unique<Encoder<std::uint32_t, std::int32_t>>(model, cache_bytes, level);
}

}  // namespace tokpack

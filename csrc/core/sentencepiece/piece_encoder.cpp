#include "core/sentencepiece/piece_encoder.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/bpe/added_tokens.hpp"
#include "core/bpe/cached_encoder.hpp"
#include "core/sentencepiece/folded.hpp"
#include "core/sentencepiece/piece_bpe.hpp"
#include "core/sentencepiece/piece_cutter.hpp"
#include "core/sentencepiece/piece_normalizer.hpp"
#include "core/sentencepiece/piece_unigram.hpp"

namespace tokpack {
namespace {

std::vector<AddedToken> control_symbols(const PieceModelFile& model) {
  std::vector<AddedToken> symbols;
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::kControl) symbols.push_back({piece.text, 0, true, false});
  }
  return symbols;
}

// Id: the type of ids in the word cache. Out: the type of ids in the output.
template <class Id, class Out>
class Encoder final : public CachedEncoder<Id, Out> {
  using Base = CachedEncoder<Id, Out>;
  using typename Base::Ids;

 public:
  Encoder(const PieceModelFile& model, std::size_t cache_bytes, Level level)
      : Base(level, cache_bytes),
        normalizer_(model),
        cutter_(model, level),
        unknown_(model.unknown),
        byte_fallback_(model.byte_fallback),
        control_(control_symbols(model)) {
    if (model.type == PieceModelType::kBpe) {
      bpe_.emplace(model);
    } else {
      unigram_.emplace(model);
    }
    seed(model);
  }

 private:
  using Base::append, Base::copy_ids, Base::ids_, Base::join_runs, Base::kernel_,
      Base::kMaxDocument, Base::look_up, Base::misses_, Base::remember, Base::room, Base::specials_;

  void encode_document(const std::uint8_t* text, std::size_t size) override {
    const std::size_t first = ids_->size();
    text_.clear();
    normalizer_.append(text, size, &text_);
    const std::size_t end = text_.size();
    if (end > kMaxDocument) throw std::out_of_range("a document has 2^31 bytes or more");
    pad_keys(&text_);
    sum_ = 0;
    summed_ = ids_->size();
    for (std::size_t at = 0; at < end;) {
      const std::size_t begin = at;
      const std::span<const std::uint32_t> starts = cutter_.next(text_.data(), end, &at);
      // A space may be unknown, and then three bytes.
      room(3 * (at - begin));
      for (std::size_t from = 0; from + 1 < starts.size(); from += kWindow) {
        const std::size_t count = std::min(kWindow, starts.size() - 1 - from);
        if (unigram_) {
          look_up_summing(starts.data() + from, count);
        } else {
          look_up(text_.data(), starts.data() + from, count);
        }
      }
    }
    if (!byte_fallback_) join_runs(first, unknown_);
    specials_ += control_.count(text, size);
  }

  // The ids of a Unigram's words in the caches are right while the sum of scores is not set back to
  // 0. Where it may have been, the words are encoded again.
  void look_up_summing(const std::uint32_t* starts, std::size_t count) {
    const std::size_t before = ids_->size();
    const float sum = sum_;
    peak_ = std::abs(sum);
    look_up(text_.data(), starts, count);
    sum_up(ids_->data() + ids_->size());
    const float in_a_word = static_cast<float>(LongWordCache::kMaxSize) * unigram_->largest();
    if (peak_ + in_a_word < PieceUnigram::kReset) return;
    sum_ = sum;
    ids_->resize(before);
    for (std::size_t i = 0; i < count; ++i) {
      word_.clear();
      unigram_->encode_after(view(text_.data() + starts[i], starts[i + 1] - starts[i]), &sum_,
                             &word_);
      for (const std::uint32_t id : word_) append(id);
    }
    summed_ = ids_->size();
  }

  // Adds the scores of this document's ids up to `end`, in their order: floats are rounded each
  // time.
  void sum_up(const Out* end) {
    for (const Out* id = ids_->data() + summed_; id < end; ++id) {
      sum_ += unigram_->score(static_cast<std::uint32_t>(*id));
      peak_ = std::max(peak_, std::abs(sum_));
    }
    summed_ = static_cast<std::size_t>(end - ids_->data());
  }

  std::optional<Ids> ids_of(const std::uint8_t* text, std::size_t size) override {
    return find_pieces(text, size) ? std::optional<Ids>(word_) : std::nullopt;
  }

  Out* encode_huge(const std::uint8_t* text, std::size_t size, Out* out) override {
    if (unigram_) return encode_in_context(text, size, out);
    find_pieces(text, size);
    return copy_ids(word_, out);
  }

  Out* encode_in_context(const std::uint8_t* text, std::size_t size, Out* out) override {
    sum_up(out);
    word_.clear();
    unigram_->encode_after(view(text, size), &sum_, &word_);
    peak_ = std::max(peak_, std::abs(sum_));
    summed_ += word_.size();
    return copy_ids(word_, out);
  }

  // Sets word_ to the ids of a new word; false, and none, when they depend on the text before it.
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

  // Enters the pieces themselves into the cache.
  void seed(const PieceModelFile& model) {
    for (const Piece& piece : model.pieces) {
      if (!is_usable(piece)) continue;
      const std::string text = folded(piece.text);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
      if (text.size() > WordKey::kMaxSize) continue;
      const WordKey key = WordKey::of(bytes, text.size());
      if (find_pieces(bytes, text.size())) remember(key, kernel_.hash(key), Ids(word_));
    }
    misses_ = 0;
  }

  PieceNormalizer normalizer_;
  PieceCutter cutter_;
  std::optional<PieceBpe> bpe_;  // one of the two
  std::optional<PieceUnigram> unigram_;
  std::uint32_t unknown_;
  bool byte_fallback_;
  AddedTokenMatcher control_;

  Buffer<std::uint8_t> text_;  // the normalized document, and kKeySlack zeros
  std::vector<std::uint32_t> word_;
  float sum_ = 0;           // of the scores of the document's ids
  std::size_t summed_ = 0;  // how many of ids_ are in the sum, or in earlier documents
  float peak_ = 0;          // the largest absolute value that the sum had in this window
};

}  // namespace

std::unique_ptr<BpeEncoder> make_piece_encoder(const PieceModelFile& model, bool wide,
                                               std::size_t cache_bytes, Level level) {
  return make_cached_encoder<Encoder>(model.pieces.size(), wide, model, cache_bytes, level);
}

}  // namespace tokpack

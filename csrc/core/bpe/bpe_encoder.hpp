// Documents to ids: added tokens, normalization, pretokens, byte pair encoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/cpu.hpp"
#include "core/bpe/added_tokens.hpp"
#include "core/bpe/bpe_model.hpp"
#include "core/bpe/token_offsets.hpp"
#include "core/pretokenize/pretokenize.hpp"
#include "core/text/normal_forms.hpp"

namespace tokpack {

struct BpeOptions {
  Pretokenizer pretokenizer;
  std::optional<NormalForm> form;  // into which what is not an added token is normalized
  bool encode_specials = true;     // special tokens inside documents become ids, not text
  std::size_t cache_bytes = 0;     // of the word cache, rounded down to a power of two
  Level level = Level::kScalar;
  // What normalizes text instead of `form`, as TextNormalizer does it.
  std::function<std::string_view(std::string_view, Places*)> normalizer = {};
  std::optional<std::uint8_t> suffix = {};  // a byte that is put behind each word
};

// A document: bytes [begin, end) of a block of text.
struct Span {
  std::int64_t begin;
  std::int64_t end;
};

// Ids that are put before and behind each document that has a token.
struct Frame {
  std::vector<std::uint32_t> before, after;
};

template <class Out>
struct EncodedDocuments {
  Buffer<Out>* ids;                               // of all documents, one after the other
  Buffer<std::int32_t>* lengths;                  // tokens of each document, its frame included
  std::vector<std::int64_t>* special;             // the document of each special token found
  Buffer<TokenOffset>* offsets = nullptr;         // of each id in its document, if asked for
  std::vector<std::int64_t>* unplaced = nullptr;  // the documents whose offsets are not known
};

// An encoder has caches and scratch memory: use it from one thread at a time.
class BpeEncoder {
 public:
  struct CacheInfo {
    std::size_t words;   // in the word cache
    std::size_t bytes;   // of the word cache
    std::size_t misses;  // words whose ids were computed
  };

  virtual ~BpeEncoder() = default;

  // Sets `result` to the ids of data[span.begin, span.end) for each span. Of the two functions the
  // one whose type of ids the encoder was not made for throws std::logic_error.
  // REQUIRES: each document is valid UTF-8 (anything else gives meaningless ids, no harm).
  // Throws std::out_of_range for a span outside of data or of 2^31 bytes and more.
  virtual void encode(std::span<const std::uint8_t> data, std::span<const Span> spans,
                      const Frame& frame, const EncodedDocuments<std::uint16_t>& result) = 0;
  virtual void encode(std::span<const std::uint8_t> data, std::span<const Span> spans,
                      const Frame& frame, const EncodedDocuments<std::int32_t>& result) = 0;
  virtual CacheInfo cache_info() const = 0;
};

// `words`: the texts of ids, to enter into the cache beforehand, most frequent first. `wide`: ids
// are int32, not uint16. `vocab_size` is above all ids. Throws std::invalid_argument when an id
// does not fit.
std::unique_ptr<BpeEncoder> make_bpe_encoder(BpeModel model, std::vector<AddedToken> added,
                                             const std::vector<std::string>& words, bool wide,
                                             std::uint32_t vocab_size, const BpeOptions& options);

}  // namespace tokpack

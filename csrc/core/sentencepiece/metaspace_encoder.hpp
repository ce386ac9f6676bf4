// Documents to the ids of a tokenizer.json whose tokens have U+2581 for a space: a BPE over
// characters, or a Unigram.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/cpu.hpp"
#include "core/bpe/added_tokens.hpp"
#include "core/bpe/bpe_encoder.hpp"
#include "core/bpe/bpe_model.hpp"
#include "core/sentencepiece/piece_unigram.hpp"
#include "core/sentencepiece/text_normalizer.hpp"

namespace tokpack {

struct MetaspaceModel {
  std::vector<std::string> tokens;  // by id, folded; empty where no text becomes one
  std::vector<Merge> merges;  // by rank, each pair once, none with a byte or the unknown token
  std::vector<std::uint32_t> byte_ids;  // of the 256 bytes; none without byte fallback
  std::uint32_t unknown = 0;            // the id of an unknown character, without byte fallback
  bool fuse_unknown = false;            // a run of unknown characters becomes one id
  bool ignore_merges = false;           // a text that is a token as a whole is not merged

  std::vector<NormalizerStep> steps;  // of the texts between added tokens; then
  bool normalizes =
      false;              // spaces are replaced before tokens that are `normalized` are looked for
  bool prepends = false;  // then a space is put in front, too, whatever the text begins with
  PrefixScheme prefix = PrefixScheme::kNever;  // of the texts between added tokens
  bool cuts_at_spaces = false;  // each space begins a word; REQUIRES: no ignore_merges

  // Of a Unigram, which has no merges. REQUIRES: cuts_at_spaces and not `normalizes`; U+2581 is a
  // token, no score is above 0, and no token is the unknown one repeated.
  std::optional<UnigramScores> scores;
  bool splits_white_space = false;  // white space is removed, and each word gets a space in front;
                                    // REQUIRES: a prefix of kAlways

  std::vector<AddedToken> added;
  bool encode_specials = true;  // special tokens inside documents become ids, not text
};

// `vocab_size` is above all ids. `wide`: ids are int32, not uint16. `cache_bytes` are those of
// the word cache. Throws std::invalid_argument when an id does not fit.
std::unique_ptr<BpeEncoder> make_metaspace_encoder(MetaspaceModel model, std::size_t vocab_size,
                                                   bool wide, std::size_t cache_bytes, Level level);

}  // namespace tokpack

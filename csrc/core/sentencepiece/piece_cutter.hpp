// Where a normalized text can be cut so that its parts become ids independently of each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/base/buffer.hpp"
#include "core/base/cpu.hpp"
#include "core/bpe/bpe_kernel.hpp"
#include "core/bpe/joinable_characters.hpp"
#include "core/sentencepiece/byte_pairs.hpp"
#include "core/sentencepiece/model_file.hpp"

namespace tokpack {

// A text is cut between two characters that are neighbours in no piece: no piece and no merge
// reaches across. What is compared is the last byte of one character and the first byte of the next
// one. Words for a Unigram that are then longer than a key of the word cache are cut by whole
// characters: merging them in a BPE takes less time than that.
class PieceCutter {
 public:
  PieceCutter(const PieceModelFile& model, Level level);
  // Folded pieces. `at_spaces`: each space begins a word, whatever the pieces are.
  PieceCutter(std::span<const std::string> pieces, bool is_unigram, bool at_spaces, Level level);

  // Where the next words of text[*at, size) begin, and behind them where the last one ends, to
  // which *at moves. Valid until the next call. REQUIRES: *at < size, and kKeySlack readable bytes
  // behind the text.
  std::span<const std::uint32_t> next(const std::uint8_t* text, std::size_t size, std::size_t* at);

 private:
  // The same by pairs of bytes: writes at most `room` begins of words, and returns their number.
  std::size_t cut(const std::uint8_t* text, std::size_t size, std::size_t* at, std::size_t room,
                  std::uint32_t* starts) const;

  BytePairs cuts_{true};
  std::optional<JoinableCharacters> joinable_;
  const BpeKernel& kernel_;
  std::uint32_t starts_[kWindow + 1 + kLongBlock] = {};
  Buffer<std::uint32_t> parts_;
};

}  // namespace tokpack

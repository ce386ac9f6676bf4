// Documents packed into samples: long ones cut, short ones put together so that little is padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/samples/gather_tokens.hpp"
#include "core/samples/permutation.hpp"

namespace tokpack {

// What is packed, and into what. lengths: n int32 in the machine's byte order, at any address, the
// tokens of each document.
//
// A document is cut into pieces: piece k is its tokens from k * seq_length on, seq_length + extra
// of them, or what is left. So with extra = 1 each of its tokens but the first is a label exactly
// once. Fewer than two tokens predict nothing and are no piece.
struct PackingInput {
  static constexpr std::int64_t kMaxCapacity = std::int64_t{1} << 24;
  static constexpr std::int64_t kLeast = 2;  // tokens of a piece
  static constexpr std::size_t kWindow = std::size_t{1} << 15;

  const unsigned char* lengths;
  std::size_t documents;
  std::int64_t seq_length;
  std::int64_t extra;
  std::uint64_t key;          // of the order in which documents enter windows
  std::int64_t multiple = 1;  // pieces begin at multiples of it in a sample

  struct Cut {
    std::int64_t full;  // pieces of capacity() tokens
    std::int64_t rest;  // tokens of the last piece, below capacity(); 0 without one
  };

  std::int64_t capacity() const { return seq_length + extra; }
  // Where pieces begin at multiples, the last label of a sample has no room behind other pieces.
  std::int64_t room() const { return capacity() / multiple * multiple; }
  std::int64_t room_of(std::int64_t rest) const { return round_up(rest, multiple); }
  std::size_t windows() const { return (documents + kWindow - 1) / kWindow; }
  std::size_t window_begin(
      std::size_t window) const;  // windows are of equal size, give or take one
  std::int64_t length_of(std::uint64_t document) const;
  Cut cut(std::int64_t length) const;

  // Throws std::invalid_argument for a seq_length below 1 or beyond kMaxCapacity, an extra not
  // 0, 1, and a multiple that does not divide seq_length.
  void check() const;
};

// The samples of each window, one after the other: first those of several pieces or of one short
// piece, then those that a full piece fills. An entry stands for a piece.
struct PackedSamples {
  static constexpr std::uint16_t kFirst = 0x8000;  // flag of the first entry of a sample
  static constexpr std::size_t kEvery = 64;        // samples from one element of starts to the next

  struct Window {
    std::int64_t first;       // its first sample
    std::int64_t first_full;  // its first sample of a full piece
    std::int64_t full_entry;  // the entry of that sample
  };

  struct Totals {
    std::int64_t tokens = 0;    // of all documents
    std::int64_t left_out = 0;  // of documents, or ends of documents, that predict nothing
    std::int64_t pieces = 0;
    std::int64_t placed = 0;  // tokens of all pieces; one that two pieces share counts twice
    std::int64_t labels = 0;  // tokens that a piece predicts
    std::int64_t cut = 0;     // documents longer than a sample
    std::int64_t few = 0;     // documents of fewer than kLeast tokens
  };

  std::vector<std::uint16_t> entries;  // position of the piece's document in the window
  std::vector<std::int64_t> starts;    // the entry of every kEvery-th sample
  std::vector<Window> windows;         // and one more, at which samples and entries end
  Totals totals;
};

// Packs each window by itself: with `together` as BestFit does, otherwise one piece a sample.
// Throws std::invalid_argument for a negative length, and where input.check() does.
PackedSamples pack(const PackingInput& input, bool together);

// Finds the pieces of a sample. The arrays it is made of must outlive this object.
class Packing {
 public:
  struct Piece {
    std::int64_t document;
    std::int64_t offset;  // tokens of the document before the piece
    std::int64_t length;  // tokens, kLeast or more
  };

  // The arrays of PackedSamples, which may come from a file. Throws std::invalid_argument where
  // they cannot be of this input.
  Packing(const PackingInput& input, std::span<const std::uint16_t> entries,
          std::span<const std::int64_t> starts, std::span<const PackedSamples::Window> windows);

  std::int64_t samples() const { return windows_.back().first; }

  // Appends the pieces of samples[i], 0 <= samples[i] < samples(), and sets counts[i] to their
  // number. Throws std::runtime_error where the arrays or the lengths do not fit together.
  void locate(std::span<const std::int64_t> samples, std::vector<Piece>& pieces,
              std::span<std::int64_t> counts) const;

 private:
  // The documents of a sample, whose lengths are being prefetched.
  struct Found {
    std::vector<std::uint64_t> documents;
    std::int64_t piece = -1;  // number of the full piece of the only document; -1: the sample has
                              // the last, shorter piece of each document
  };

  void find(std::int64_t sample, Found& found) const;
  void cut(const Found& found, std::vector<Piece>& pieces) const;

  PackingInput input_;
  Permutation permutation_;
  std::span<const std::uint16_t> entries_;
  std::span<const std::int64_t> starts_;
  std::span<const PackedSamples::Window> windows_;
};

}  // namespace tokpack

// One epoch over a dataset: its documents in a keyed random order, cut into samples.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/samples/permutation.hpp"

namespace tokpack {

// The permuted documents, concatenated, are cut every seq_length tokens; a sample also has the
// first `extra` tokens of the next one. In memory is the number of tokens before each 64th
// document; the rest is computed when a sample is asked for.
class DocumentOrder {
 public:
  struct Piece {
    std::int64_t document;
    std::int64_t offset;  // tokens of the document before the piece
    std::int64_t length;  // tokens, never 0
  };

  // lengths: n int32 in the machine's byte order, at any address, which must outlive this object.
  // Throws std::invalid_argument for a negative length, a seq_length below 1 or an extra not 0, 1.
  DocumentOrder(const unsigned char* lengths, std::size_t n, std::int64_t seq_length,
                std::int64_t extra, std::uint64_t key);

  std::size_t documents() const { return count_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t samples() const { return samples_; }
  std::int64_t sample_tokens() const { return seq_length_ + extra_; }

  // Sets `pieces` to those of sample j, 0 <= j < samples(); their lengths sum to sample_tokens().
  // Throws std::runtime_error when the lengths have changed since construction.
  void locate(std::int64_t j, std::vector<Piece>& pieces) const;

  // Sets `pieces` to those of all samples, one after the other, and counts[i] to the number of
  // those of samples[i]. Faster than one by one: the memory that a sample needs is fetched while
  // others are located.
  void locate_many(std::span<const std::int64_t> samples, std::vector<Piece>& pieces,
                   std::span<std::int64_t> counts) const;

 private:
  static constexpr std::size_t kBlock = Permutation::kBatch;

  // Documents of one block of the order, and their lengths. The lengths are fetched together,
  // because each one is a cache miss.
  struct Block {
    std::uint64_t document[kBlock];
    std::int64_t length[kBlock];
    std::size_t count;
  };

  // A search for a sample whose blocks have been prefetched. Few samples lie in more than two.
  struct Search {
    std::size_t block;
    std::int64_t skip;  // tokens of the block before the sample
    std::size_t fetched;
    std::array<Block, 2> blocks;
  };

  std::size_t guess_block(std::int64_t token) const;
  void begin_search(std::int64_t j, Search& out) const;
  void end_search(Search& search, std::vector<Piece>& pieces) const;
  void permute(std::size_t block, Block& out) const;  // also asks the caches for the lengths
  void read_lengths(Block& block) const;
  std::int64_t length_of(std::uint64_t document) const;
  std::size_t find_block(std::int64_t token) const;

  const unsigned char* lengths_;
  std::size_t count_;
  std::int64_t seq_length_;
  std::int64_t extra_;
  Permutation permutation_;
  std::vector<std::int64_t> begins_;  // tokens before each block
  std::int64_t tokens_ = 0;
  std::int64_t samples_ = 0;
};

}  // namespace tokpack

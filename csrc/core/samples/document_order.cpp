#include "core/samples/document_order.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/base/prefetch.hpp"

namespace tokpack {

DocumentOrder::DocumentOrder(const unsigned char* lengths, std::size_t n, std::int64_t seq_length,
                             std::int64_t extra, std::uint64_t key)
    : lengths_(lengths), count_(n), seq_length_(seq_length), extra_(extra), permutation_(n, key) {
  constexpr std::int64_t kMaxLength = std::numeric_limits<std::int64_t>::max() / 4;
  if (seq_length < 1 || seq_length > kMaxLength) {
    throw std::invalid_argument("a sequence length of " + std::to_string(seq_length) +
                                "; it must be 1 or more");
  }
  if (extra != 0 && extra != 1) {
    throw std::invalid_argument("extra is " + std::to_string(extra) + "; it must be 0 or 1");
  }
  const std::size_t blocks = (n + kBlock - 1) / kBlock;
  begins_.reserve(blocks);
  // Two blocks in turn: the lengths of one are fetched while the other is computed.
  Block pair[2];
  if (blocks > 0) permute(0, pair[0]);
  for (std::size_t b = 0; b < blocks; ++b) {
    if (b + 1 < blocks) permute(b + 1, pair[(b + 1) % 2]);
    Block& block = pair[b % 2];
    read_lengths(block);
    begins_.push_back(tokens_);
    for (std::size_t i = 0; i < block.count; ++i) {
      if (block.length[i] < 0) {
        throw std::invalid_argument("document " + std::to_string(block.document[i]) + " has " +
                                    std::to_string(block.length[i]) + " tokens");
      }
      tokens_ += block.length[i];
    }
  }
  samples_ = std::max<std::int64_t>(tokens_ - extra, 0) / seq_length;
}

void DocumentOrder::locate(std::int64_t j, std::vector<Piece>& pieces) const {
  pieces.clear();
  Search search;
  begin_search(j, search);
  end_search(search, pieces);
}

void DocumentOrder::locate_many(std::span<const std::int64_t> samples, std::vector<Piece>& pieces,
                                std::span<std::int64_t> counts) const {
  constexpr std::size_t kAhead = 2;  // searches in flight
  pieces.clear();
  std::array<Search, kAhead + 1> searches;
  for (std::size_t i = 0; i < samples.size() + kAhead; ++i) {
    if (i + kAhead < samples.size()) {
      const std::size_t guess = guess_block(samples[i + kAhead] * seq_length_);
      prefetch(&begins_[guess]);
    }
    if (i < samples.size()) begin_search(samples[i], searches[i % searches.size()]);
    if (i < kAhead) continue;
    const std::size_t before = pieces.size();
    end_search(searches[(i - kAhead) % searches.size()], pieces);
    counts[i - kAhead] = static_cast<std::int64_t>(pieces.size() - before);
  }
}

void DocumentOrder::begin_search(std::int64_t j, Search& out) const {
  const std::int64_t first = j * seq_length_;
  out.block = find_block(first);
  out.skip = first - begins_[out.block];
  out.fetched = 0;
  for (std::size_t b = out.block; b < begins_.size() && out.fetched < out.blocks.size(); ++b) {
    if (b > out.block && begins_[b] - first >= sample_tokens()) break;
    permute(b, out.blocks[out.fetched++]);
  }
}

void DocumentOrder::end_search(Search& search, std::vector<Piece>& pieces) const {
  std::int64_t missing = sample_tokens(), skip = search.skip;
  for (std::size_t n = 0; missing > 0 && search.block + n < begins_.size(); ++n) {
    Block& block = search.blocks[n < search.fetched ? n : 0];
    if (n >= search.fetched) permute(search.block + n, block);
    read_lengths(block);
    for (std::size_t i = 0; i < block.count && missing > 0; ++i) {
      const std::int64_t length = block.length[i];
      if (skip >= length) {
        skip -= length;
        continue;
      }
      const std::int64_t taken = std::min(length - skip, missing);
      pieces.push_back({static_cast<std::int64_t>(block.document[i]), skip, taken});
      skip = 0;
      missing -= taken;
    }
  }
  if (missing > 0) throw std::runtime_error("the lengths of the documents have changed");
}

void DocumentOrder::permute(std::size_t b, Block& out) const {
  const std::size_t begin = b * kBlock;
  out.count = std::min(kBlock, count_ - begin);
  for (std::size_t i = 0; i < out.count; ++i) out.document[i] = begin + i;
  permutation_.batch({out.document, out.count});
  for (std::size_t i = 0; i < out.count; ++i) {
    prefetch(lengths_ + out.document[i] * sizeof(std::int32_t));
  }
}

void DocumentOrder::read_lengths(Block& block) const {
  for (std::size_t i = 0; i < block.count; ++i) block.length[i] = length_of(block.document[i]);
}

std::int64_t DocumentOrder::length_of(std::uint64_t document) const {
  std::int32_t length;
  std::memcpy(&length, lengths_ + document * sizeof(length), sizeof(length));
  return length;
}

// Since the documents are shuffled, the sums grow almost linearly.
std::size_t DocumentOrder::guess_block(std::int64_t token) const {
  const std::size_t blocks = begins_.size();
  const auto tokens_a_block =
      std::max<std::int64_t>(tokens_ / static_cast<std::int64_t>(blocks), 1);
  return std::min(static_cast<std::size_t>(token / tokens_a_block), blocks - 1);
}

// The last block that begins at or before the token: the search starts at the guess and widens in
// doubling steps.
std::size_t DocumentOrder::find_block(std::int64_t token) const {
  const std::size_t blocks = begins_.size();
  const std::size_t guess = guess_block(token);
  std::size_t low = guess, high = guess + 1;  // the block is in [low, high) in the end
  for (std::size_t step = 1; low > 0 && begins_[low] > token; step *= 2) {
    high = low;
    low = low > step ? low - step : 0;
  }
  for (std::size_t step = 1; high < blocks && begins_[high] <= token; step *= 2) {
    low = high;
    high = std::min(high + step, blocks);
  }
  const auto begin = begins_.begin();
  const auto found = std::upper_bound(begin + static_cast<std::ptrdiff_t>(low),
                                      begin + static_cast<std::ptrdiff_t>(high), token);
  return static_cast<std::size_t>(found - begin) - 1;
}

}  // namespace tokpack

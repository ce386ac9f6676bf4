// Words that are a token without merging (ignore_merges of a tokenizer.json).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bpe/word_cache.hpp"

namespace tokpack {

class WholeWords {
 public:
  WholeWords() = default;

  // The id of each word is its position; empty ones are ignored. Of equal words the first counts.
  explicit WholeWords(std::span<const std::string> words)
      : entries_(std::bit_ceil(words.size() * 2 + 1)),
        filter_(std::bit_ceil(words.size() * kFilterShare + 64) / 64) {
    for (std::uint32_t id = 0; id < words.size(); ++id) {
      const std::string& word = words[id];
      if (word.empty()) continue;
      const std::uint64_t hash = LongWordCache::hash(bytes_of(word), word.size());
      std::size_t at = hash & (entries_.size() - 1);
      while (entries_[at].size != 0) at = (at + 1) & (entries_.size() - 1);
      entries_[at] = {static_cast<std::uint32_t>(text_.size()), id,
                      static_cast<std::uint32_t>(word.size())};
      text_ += word;
      const std::size_t bit = filter_bit(hash);
      filter_[bit / 64] |= std::uint64_t{1} << bit % 64;
    }
  }

  bool empty() const { return text_.empty(); }

  // Nearly all words that are looked for are none of these: the filter says so of most.
  std::optional<std::uint32_t> find(const std::uint8_t* text, std::size_t size) const {
    if (empty()) return std::nullopt;
    const std::uint64_t hash = LongWordCache::hash(text, size);
    const std::size_t bit = filter_bit(hash);
    if ((filter_[bit / 64] >> bit % 64 & 1) == 0) return std::nullopt;
    std::size_t at = hash & (entries_.size() - 1);
    for (; entries_[at].size != 0; at = (at + 1) & (entries_.size() - 1)) {
      if (entries_[at].size == size && std::memcmp(&text_[entries_[at].begin], text, size) == 0) {
        return entries_[at].id;
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t kFilterShare = 16;  // bits a word

  struct Entry {
    std::uint32_t begin;  // in text_
    std::uint32_t id;
    std::uint32_t size;
  };

  // By other bits of the hash than the place in entries_.
  std::size_t filter_bit(std::uint64_t hash) const {
    return hash >> 32 & (filter_.size() * 64 - 1);
  }
  static const std::uint8_t* bytes_of(const std::string& word) {
    return reinterpret_cast<const std::uint8_t*>(word.data());
  }

  std::vector<Entry> entries_;
  std::vector<std::uint64_t> filter_;  // a power of two of bits
  std::string text_;
};

}  // namespace tokpack

// Words that are a token without merging (ignore_merges of a tokenizer.json).
#pragma once

#include <array>
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
      : entries_(std::bit_ceil(words.size() * 2 + 1)) {
    for (std::uint32_t id = 0; id < words.size(); ++id) {
      const std::string& word = words[id];
      if (word.empty()) continue;
      std::size_t at = LongWordCache::hash(bytes_of(word), word.size()) & (entries_.size() - 1);
      while (entries_[at].size != 0) at = (at + 1) & (entries_.size() - 1);
      entries_[at] = {static_cast<std::uint32_t>(text_.size()), id,
                      static_cast<std::uint32_t>(word.size())};
      text_ += word;
      if (word.size() <= WordKey::kMaxSize) continue;
      const std::uint64_t bit = long_bit(LongWordCache::hash(bytes_of(word), word.size()));
      long_[bit / 64] |= std::uint64_t{1} << bit % 64;
    }
  }

  bool empty() const { return text_.empty(); }

  std::optional<std::uint32_t> find(const std::uint8_t* text, std::size_t size) const {
    if (empty()) return std::nullopt;
    return find(text, size, LongWordCache::hash(text, size));
  }

  // The same for a word that is longer than a key of the word cache, which seldom is one of these.
  std::optional<std::uint32_t> find_long(const std::uint8_t* text, std::size_t size) const {
    if (empty()) return std::nullopt;
    const std::uint64_t hash = LongWordCache::hash(text, size);
    const std::uint64_t bit = long_bit(hash);
    if ((long_[bit / 64] >> bit % 64 & 1) == 0) return std::nullopt;
    return find(text, size, hash);
  }

 private:
  static constexpr unsigned kLongBits = 18;

  struct Entry {
    std::uint32_t begin;  // in text_
    std::uint32_t id;
    std::uint32_t size;
  };

  std::optional<std::uint32_t> find(const std::uint8_t* text, std::size_t size,
                                    std::uint64_t hash) const {
    std::size_t at = hash & (entries_.size() - 1);
    for (; entries_[at].size != 0; at = (at + 1) & (entries_.size() - 1)) {
      if (entries_[at].size == size && std::memcmp(&text_[entries_[at].begin], text, size) == 0) {
        return entries_[at].id;
      }
    }
    return std::nullopt;
  }

  static std::uint64_t long_bit(std::uint64_t hash) { return hash >> (64 - kLongBits); }
  static const std::uint8_t* bytes_of(const std::string& word) {
    return reinterpret_cast<const std::uint8_t*>(word.data());
  }

  std::vector<Entry> entries_;
  std::array<std::uint64_t, (1 << kLongBits) / 64> long_{};  // a filter of the long ones
  std::string text_;
};

}  // namespace tokpack

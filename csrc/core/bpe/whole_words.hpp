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

  // The id of each word is its position; empty words are none.
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
    }
  }

  bool empty() const { return text_.empty(); }

  std::optional<std::uint32_t> find(const std::uint8_t* text, std::size_t size) const {
    if (empty()) return std::nullopt;
    std::size_t at = LongWordCache::hash(text, size) & (entries_.size() - 1);
    for (; entries_[at].size != 0; at = (at + 1) & (entries_.size() - 1)) {
      if (entries_[at].size == size && std::memcmp(&text_[entries_[at].begin], text, size) == 0) {
        return entries_[at].id;
      }
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    std::uint32_t begin;  // in text_
    std::uint32_t id;
    std::uint32_t size;
  };

  static const std::uint8_t* bytes_of(const std::string& word) {
    return reinterpret_cast<const std::uint8_t*>(word.data());
  }

  std::vector<Entry> entries_;
  std::string text_;
};

}  // namespace tokpack

// BPE of one word over its characters, as the Hugging Face library merges them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/bpe/bpe_model.hpp"
#include "core/bpe/product_table.hpp"

namespace tokpack {

struct WordBpeSettings {
  std::vector<Merge> merges;  // by rank, each pair once
  std::string suffix;         // of a token that ends a word
  bool fuse_unknown = false;  // a run of unknown characters in a word becomes one id
  bool byte_fallback =
      false;  // what has no token becomes bytes, <0x00> to <0xFF>, if these are there
  bool ignore_merges = false;  // a word that is a token as a whole is not merged
  bool of_bytes = false;       // not characters but bytes are merged, and prefixed
};

// Immutable but for its scratch memory: for one thread at a time.
class WordBpe {
 public:
  // `tokens` by id, empty where no text becomes one. `prefix`: of a token that goes on a word.
  WordBpe(std::span<const std::string> tokens, std::string prefix, std::uint32_t unknown,
          WordBpeSettings settings);

  // Appends the ids of a word. REQUIRES: not empty; valid UTF-8, unless bytes are merged.
  void encode(std::string_view word, std::vector<std::uint32_t>* ids);

  std::string_view suffix() const { return settings_.suffix; }
  bool fuses_unknown() const { return settings_.fuse_unknown; }
  // Whether what has no token becomes bytes, and what is put around characters does not.
  bool falls_back() const {
    return settings_.byte_fallback && prefix_.empty() && settings_.suffix.empty();
  }

  // The most ids of so many words of so many bytes in all. Prefix and suffix may become bytes.
  std::size_t most_ids(std::size_t bytes, std::size_t words) const {
    if (!settings_.byte_fallback) return bytes;
    return bytes * (1 + prefix_.size()) + words * settings_.suffix.size();
  }

 private:
  static constexpr std::uint32_t kNone = kNoProduct;

  struct Symbol {
    std::uint32_t id;
    std::uint32_t previous, next;  // kNone where there is none
    bool is_merged = false;        // into the one before
  };

  std::uint32_t find(const std::string& text) const;
  void add_symbols(std::string_view word);
  bool add_bytes(std::string_view text);
  void merge();

  std::string prefix_;
  std::uint32_t unknown_;
  WordBpeSettings settings_;
  std::unordered_map<std::string, std::uint32_t> ids_;
  ProductTable products_;
  std::vector<std::uint32_t> byte_ids_;  // kNone for a byte without a token
  std::vector<std::uint32_t> initial_;
  std::vector<Symbol> symbols_;
  // Ranks, and places of left symbols below them.
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> candidates_;
};

}  // namespace tokpack

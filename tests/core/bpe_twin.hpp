// A slow, obviously right twin of the encoder, and random vocabularies for both.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bpe/added_tokens.hpp"
#include "core/bpe/bpe_model.hpp"
#include "core/pretokenize/pretokenize.hpp"

namespace tokpack::test {

struct Vocabulary {
  std::vector<std::string> words;  // by id
  std::array<std::uint32_t, 256> byte_ids;
  std::vector<Merge> merges;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> ranks;
  std::map<std::string, std::uint32_t, std::less<>> ids;  // of equal words, the first
  bool whole_words = false;                               // a pretoken that is a word is not merged

  BpeModel model() const {
    return BpeModel(byte_ids, merges, whole_words ? WholeWords(words) : WholeWords());
  }
};

// Bytes at ids from `base` on, then products of random pairs of what is in `sample`. Pairs of
// frequent words come often, so that long merges happen.
inline Vocabulary random_vocabulary(std::mt19937& random, std::string_view sample,
                                    std::uint32_t base, std::size_t merges) {
  Vocabulary v;
  v.words.resize(base);
  for (std::uint32_t b = 0; b < 256; ++b) {
    v.byte_ids[b] = base + b;
    v.words.push_back(std::string(1, static_cast<char>(b)));
  }
  std::vector<std::uint32_t> ids;
  for (const char c : sample) ids.push_back(v.byte_ids[static_cast<std::uint8_t>(c)]);
  while (v.merges.size() < merges && ids.size() > 1) {
    const std::size_t at = random() % (ids.size() - 1);
    const std::pair pair(ids[at], ids[at + 1]);
    if (v.ranks.count(pair) == 0) {
      const auto product = static_cast<std::uint32_t>(v.words.size());
      v.ranks[pair] = static_cast<std::uint32_t>(v.merges.size());
      v.merges.push_back({pair.first, pair.second, product});
      v.words.push_back(v.words[pair.first] + v.words[pair.second]);
    }
    ids[at] = v.merges[v.ranks[pair]].product;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  for (std::uint32_t id = base; id < v.words.size(); ++id) v.ids.emplace(v.words[id], id);
  return v;
}

inline std::vector<std::uint32_t> merge_slowly(const Vocabulary& v, std::string_view word) {
  constexpr std::uint32_t kNone = ~0u;
  std::vector<std::uint32_t> ids;
  for (const char c : word) ids.push_back(v.byte_ids[static_cast<std::uint8_t>(c)]);
  const auto rank = [&](std::size_t i) {  // of an id and the next one
    if (i + 1 >= ids.size()) return kNone;
    const auto rule = v.ranks.find({ids[i], ids[i + 1]});
    return rule == v.ranks.end() ? kNone : rule->second;
  };
  std::vector<std::uint32_t> ranks;
  for (std::size_t i = 0; i < ids.size(); ++i) ranks.push_back(rank(i));
  for (;;) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (best == ranks.end() || *best == kNone) return ids;
    const std::ptrdiff_t at = best - ranks.begin();
    const auto i = static_cast<std::size_t>(at);
    ids[i] = v.merges[*best].product;
    ids.erase(ids.begin() + at + 1);
    ranks.erase(ranks.begin() + at + 1);
    ranks[i] = rank(i);
    if (i > 0) ranks[i - 1] = rank(i - 1);
  }
}

inline void encode_plain(const Vocabulary& v, const Pretokenizer& pattern, std::string_view text,
                         std::vector<std::uint32_t>* ids) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  std::size_t begin = 0;
  for (const std::int64_t end : pretoken_ends(pattern, std::nullopt, bytes)) {
    const std::string_view word = text.substr(begin, static_cast<std::size_t>(end) - begin);
    begin = static_cast<std::size_t>(end);
    const auto whole = v.ids.find(word);
    if (v.whole_words && whole != v.ids.end()) {
      ids->push_back(whole->second);
      continue;
    }
    const auto merged = merge_slowly(v, word);
    ids->insert(ids->end(), merged.begin(), merged.end());
  }
}

// The document with the added tokens cut out first, leftmost and longest.
inline std::vector<std::uint32_t> encode_slowly(const Vocabulary& v, const Pretokenizer& pattern,
                                                const std::vector<AddedToken>& added,
                                                std::string_view text) {
  std::vector<std::uint32_t> ids;
  std::size_t plain = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* longest = nullptr;
    for (const AddedToken& token : added) {
      if (text.substr(at, token.content.size()) == token.content &&
          (longest == nullptr || token.content.size() > longest->content.size())) {
        longest = &token;
      }
    }
    if (longest == nullptr) {
      ++at;
      continue;
    }
    encode_plain(v, pattern, text.substr(plain, at - plain), &ids);
    ids.push_back(longest->id);
    plain = at += longest->content.size();
  }
  encode_plain(v, pattern, text.substr(plain), &ids);
  return ids;
}

}  // namespace tokpack::test

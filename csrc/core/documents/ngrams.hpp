// Hashes of n-grams of tokens. Results depend on them, so they are integer arithmetic, equal on
// every machine, and never change: tests/golden/ngrams.txt has some of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tokpack {

// The polynomial (t[0] + 1) B^(n-1) + ... + (t[n-1] + 1) of the tokens, modulo 2^64. Tokens are
// std::uint16_t, std::uint32_t or std::uint64_t; a negative id counts as the unsigned number of its
// bits.
inline constexpr std::uint64_t kNgramBase = 0xD1342543DE82EF95u;

template <class T>
constexpr std::uint64_t hash_ngram(std::span<const T> tokens) {
  std::uint64_t hash = 0;
  for (const T token : tokens) hash = hash * kNgramBase + token + 1;
  return hash;
}

// Calls each(position, hash) for every n-gram of the tokens in order; fewer than n tokens are one
// n-gram, no tokens are none. n must be at least 1.
template <class T, class Each>
void each_ngram(std::span<const T> tokens, std::size_t n, Each&& each) {
  if (tokens.size() <= n) {
    if (!tokens.empty()) each(std::size_t{0}, hash_ngram(tokens));
    return;
  }
  std::uint64_t leaving = 1;  // B^n, the factor of the token that leaves
  for (std::size_t k = 0; k < n; ++k) leaving *= kNgramBase;
  std::uint64_t hash = hash_ngram(tokens.first(n));
  const std::size_t last = tokens.size() - n;
  for (std::size_t i = 0; i < last; ++i) {
    each(i, hash);
    const std::uint64_t next = tokens[i + n] + std::uint64_t{1};
    hash = hash * kNgramBase + (next - (tokens[i] + std::uint64_t{1}) * leaving);
  }
  each(last, hash);
}

// A bijection of 64-bit numbers in which every input bit reaches every output bit; its factors are
// those of MurmurHash3's finalizer.
constexpr std::uint64_t mix_hash(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0xFF51AFD7ED558CCDu;
  x = (x ^ (x >> 29)) * 0xC4CEB9FE1A85EC53u;
  return x ^ (x >> 32);
}

}  // namespace tokpack

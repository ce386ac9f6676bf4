#include "core/bpe/first_symbols.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/bpe/bpe_model.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kMostBytes = 3;

// The symbols that are at one border of a character while it is merged, the whole one included.
struct Border {
  std::array<std::uint32_t, kMostBytes> symbols{};
  std::size_t count = 0;

  void add(std::uint32_t symbol) { symbols[count++] = symbol; }
  std::span<const std::uint32_t> all() const { return {symbols.data(), count}; }
};

struct Merged {
  std::uint32_t id = MergeTable32::kNoSymbol;
  std::uint32_t last = 0;  // the highest rank of its merges
  Border before, after;
};

// What merging makes of the bytes of one character; its id is kNoSymbol if that is not one symbol.
Merged merged(const MergeTable32& table, const std::uint8_t* text, std::size_t size) {
  std::vector<std::uint32_t> symbols;
  for (std::size_t i = 0; i < size; ++i) symbols.push_back(table.byte_id(text[i]));
  Merged character;
  character.before.add(symbols.front());
  character.after.add(symbols.back());
  while (symbols.size() > 1) {
    std::uint32_t best = MergeTable32::kNoRank;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const std::uint32_t rank = table.rank(symbols[i], symbols[i + 1]);
      if (rank < best) std::tie(best, at) = std::pair(rank, i);
    }
    if (best == MergeTable32::kNoRank) return character;
    symbols[at] = table.product(best);
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    character.last = std::max(character.last, best);
    if (at == 0) character.before.add(symbols[0]);
    if (at + 1 == symbols.size()) character.after.add(symbols.back());
  }
  character.id = symbols[0];
  return character;
}

// The rules that join a symbol at one border of characters to what is beside it before one of these
// characters is whole.
class EarlyRules {
 public:
  explicit EarlyRules(std::size_t symbols) : latest_(symbols) {}

  void expect(const Border& border, std::uint32_t last) {
    for (const std::uint32_t symbol : border.all()) {
      latest_[symbol] = std::max(latest_[symbol], last);
    }
  }
  // byte: of what is beside the symbol, the one that touches it.
  void add(std::uint32_t symbol, std::uint8_t byte, std::uint32_t rank) {
    if (rank < latest_[symbol]) rules_.emplace_back(symbol, byte, rank);
  }
  void sort() { std::ranges::sort(rules_); }

  // The bytes beside a character for which there is no such rule.
  std::array<std::uint64_t, 4> allowed(const Border& border, std::uint32_t last) const {
    std::array<std::uint64_t, 4> bytes;
    bytes.fill(~std::uint64_t{0});
    for (const std::uint32_t symbol : border.all()) {
      auto rule = std::ranges::lower_bound(rules_, std::tuple(symbol, std::uint8_t{0}, 0u));
      for (; rule != rules_.end() && std::get<0>(*rule) == symbol; ++rule) {
        const std::uint8_t byte = std::get<1>(*rule);
        if (std::get<2>(*rule) < last) bytes[byte >> 6] &= ~(std::uint64_t{1} << (byte & 63));
      }
    }
    return bytes;
  }

 private:
  std::vector<std::uint32_t> latest_;  // by symbol, the highest rank of its characters' merges
  std::vector<std::tuple<std::uint32_t, std::uint8_t, std::uint32_t>> rules_;
};

}  // namespace

FirstSymbols::FirstSymbols(const MergeTable32& table, std::span<const Merge> merges,
                           std::span<const SymbolEnds> ends, std::size_t least) {
  std::map<std::uint32_t, Merged> found;  // by code point
  EarlyRules before(ends.size()), after(ends.size());
  for (const SymbolEnds& text : ends) {
    const std::size_t size = text.size == 0 ? 1 : character_size(text.first[0]);
    if (size == 1 || size != text.size) continue;
    const std::uint32_t c = code_point(text.first.data(), size);
    const Merged character = merged(table, text.first.data(), size);
    if (c == 0 || character.id == MergeTable32::kNoSymbol) continue;
    before.expect(character.before, character.last);
    after.expect(character.after, character.last);
    found.emplace(c, character);
  }
  if (found.empty() || found.size() < least) return;
  characters_.resize(std::size_t{1} << 16);
  for (std::uint32_t rank = 0; rank < merges.size(); ++rank) {
    const SymbolEnds &left = ends[merges[rank].left], &right = ends[merges[rank].right];
    if (left.size == 0 || right.size == 0) continue;  // no text gives this symbol
    before.add(merges[rank].right, left.last[3], rank);
    after.add(merges[rank].left, right.first[0], rank);
  }
  before.sort();
  after.sort();
  std::map<Bytes, std::uint16_t> numbers;
  const auto number = [&](const Bytes& set) {
    const auto [at, is_new] = numbers.try_emplace(set, static_cast<std::uint16_t>(sets_.size()));
    if (is_new) sets_.push_back(set);
    return at->second;
  };
  for (const auto& [c, character] : found) {
    characters_[c] = {character.id, number(before.allowed(character.before, character.last)),
                      number(after.allowed(character.after, character.last))};
  }
}

}  // namespace tokpack

#include "core/bpe/bpe_model.hpp"

#include <algorithm>
#include <bit>
#include <queue>
#include <stdexcept>

namespace tokpack {

namespace {

std::span<const Merge> checked(const std::array<std::uint32_t, 256>& byte_ids,
                               std::span<const Merge> merges) {
  if (merges.size() >= MergeTable32::kNoRank) throw std::invalid_argument("too many merges");
  for (const std::uint32_t id : byte_ids) {
    if (id != BpeModel::kNoToken && id >= BpeModel::kIdLimit) {
      throw std::invalid_argument("the id " + std::to_string(id) + " of a byte is out of range");
    }
  }
  for (std::size_t r = 0; r < merges.size(); ++r) {
    const Merge& merge = merges[r];
    if (std::max({merge.left, merge.right, merge.product}) >= BpeModel::kIdLimit) {
      throw std::invalid_argument("merge " + std::to_string(r) + " has an id out of range");
    }
  }
  return merges;
}

constexpr int kMostPasses = 16;  // over the rules, to find all sizes

std::vector<std::uint32_t> sizes_of_symbols(const std::array<std::uint32_t, 256>& byte_ids,
                                            std::span<const Merge> merges) {
  std::uint32_t last = 0;
  for (const Merge& merge : merges) last = std::max({last, merge.left, merge.right, merge.product});
  for (const std::uint32_t id : byte_ids) last = std::max(last, id == BpeModel::kNoToken ? 0 : id);
  std::vector<std::uint32_t> sizes(last + std::size_t{1});  // 0: not known
  for (const std::uint32_t id : byte_ids) {
    if (id != BpeModel::kNoToken) sizes[id] = 1;
  }
  bool found = true;
  for (int pass = 0; found && pass < kMostPasses; ++pass) {
    found = false;
    for (const Merge& merge : merges) {
      if (sizes[merge.left] == 0 || sizes[merge.right] == 0) continue;
      const std::uint64_t size = std::uint64_t{sizes[merge.left]} + sizes[merge.right];
      std::uint32_t& known = sizes[merge.product];
      if (size > 0xFFFFFFFF || (known != 0 && known != size)) return {};
      found |= known == 0;
      known = static_cast<std::uint32_t>(size);
    }
  }
  return found ? std::vector<std::uint32_t>() : sizes;
}

}  // namespace

BpeModel::BpeModel(const std::array<std::uint32_t, 256>& byte_ids, std::span<const Merge> merges,
                   WholeWords whole_words)
    : BpeModel(byte_ids, merges, std::move(whole_words),
               symbol_ends(byte_ids, checked(byte_ids, merges))) {}

BpeModel::BpeModel(const std::array<std::uint32_t, 256>& byte_ids, std::span<const Merge> merges,
                   WholeWords whole_words, std::span<const SymbolEnds> ends)
    : merges_(byte_ids, merges),
      merge_table16_(MergeTable16::make(byte_ids, merges)),
      joinable_(merges, ends),
      first_symbols_(merges_, merges, ends),
      whole_words_(std::move(whole_words)),
      sizes_(sizes_of_symbols(byte_ids, merges)) {}

std::size_t BpeModel::encode(const std::uint8_t* text, std::size_t size, std::uint32_t* out) const {
  return size <= kShort ? encode_short(text, size, out) : encode_long(text, size, out);
}

// Short words: symbols in a dense array, the lowest rank found by a scan. `ranks[i]` belongs to the
// pair (out[i], out[i + 1]).
std::size_t BpeModel::encode_short(const std::uint8_t* text, std::size_t size,
                                   std::uint32_t* out) const {
  std::uint32_t ranks[kShort + 1];
  std::size_t count = size;
  for (std::size_t i = 0; i < count; ++i) out[i] = merges_.byte_id(text[i]);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    ranks[i] = merges_.byte_pair(text[i], text[i + 1]);
  }
  while (count > 1) {
    std::size_t best = 0;
    std::uint32_t lowest = ranks[0];
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < lowest) {
        lowest = ranks[i];
        best = i;
      }
    }
    if (lowest == kNoRank) break;
    out[best] = merges_.product(lowest);
    --count;
    for (std::size_t i = best + 1; i < count; ++i) out[i] = out[i + 1];
    for (std::size_t i = best; i + 1 < count; ++i) ranks[i] = ranks[i + 1];
    if (best > 0) ranks[best - 1] = merges_.rank(out[best - 1], out[best]);
    if (best + 1 < count) ranks[best] = merges_.rank(out[best], out[best + 1]);
  }
  return count;
}

// Long words: a linked list of symbols and a heap of candidate merges, O(n log n). A candidate
// whose symbols have changed since it was entered is stale and skipped.
std::size_t BpeModel::encode_long(const std::uint8_t* text, std::size_t size,
                                  std::uint32_t* out) const {
  struct Symbol {
    std::uint32_t id;
    std::uint32_t next;
    std::uint32_t previous;
    std::uint32_t rank;  // with the next one; kNoRank where they do not merge, or it is merged
  };
  const auto end = static_cast<std::uint32_t>(size);
  std::vector<Symbol> symbols(size);
  std::vector<std::uint64_t> candidates;  // rank, then position: the leftmost of equals comes first
  candidates.reserve(size);
  for (std::uint32_t i = 0; i < end; ++i) {
    const std::uint32_t r = i + 1 < end ? merges_.byte_pair(text[i], text[i + 1]) : kNoRank;
    symbols[i] = {merges_.byte_id(text[i]), i + 1, i - 1, r};
    if (r != kNoRank) candidates.push_back(std::uint64_t{r} << 32 | i);
  }
  std::priority_queue heap(std::greater<>(), std::move(candidates));
  const auto pair = [&](std::uint32_t left, std::uint32_t right) {
    const std::uint32_t r = merges_.rank(symbols[left].id, symbols[right].id);
    symbols[left].rank = r;
    if (r != kNoRank) heap.push(std::uint64_t{r} << 32 | left);
  };
  while (!heap.empty()) {
    const auto [r, at] = std::pair(static_cast<std::uint32_t>(heap.top() >> 32),
                                   static_cast<std::uint32_t>(heap.top()));
    heap.pop();
    Symbol& left = symbols[at];
    if (left.rank != r) continue;
    symbols[left.next].rank = kNoRank;
    left = {merges_.product(r), symbols[left.next].next, left.previous, kNoRank};
    if (left.next < end) {
      symbols[left.next].previous = at;
      pair(at, left.next);
    }
    if (left.previous < end) pair(left.previous, at);
  }
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < end; i = symbols[i].next) out[count++] = symbols[i].id;
  return count;
}

}  // namespace tokpack

#include "core/bpe/bpe_model.hpp"

#include <algorithm>
#include <bit>
#include <queue>
#include <stdexcept>

namespace tokpack {

namespace {

constexpr std::uint64_t pair_key(std::uint32_t left, std::uint32_t right) {
  return std::uint64_t{left} << 21 | right;
}

constexpr std::uint64_t pair_slot(std::uint64_t key) { return (key * 0x9E3779B97F4A7C15ull) >> 32; }

}  // namespace

BpeModel::BpeModel(const std::array<std::uint32_t, 256>& byte_ids, std::span<const Merge> merges,
                   std::unordered_map<std::string, std::uint32_t> whole_words)
    : byte_ids_(byte_ids),
      byte_pair_ranks_(std::size_t{256} * 256, kNoRank),
      products_(merges.size()),
      pairs_(std::bit_ceil(merges.size() * 4 + 16)),
      pair_mask_(pairs_.size() - 1),
      whole_words_(std::move(whole_words)) {
  if (merges.size() >= kIdLimit) throw std::invalid_argument("too many merges");
  for (std::size_t r = 0; r < merges.size(); ++r) {
    const Merge& merge = merges[r];
    if (merge.left >= kIdLimit || merge.right >= kIdLimit || merge.product >= kIdLimit) {
      throw std::invalid_argument("merge " + std::to_string(r) + " has an id out of range");
    }
    products_[r] = merge.product;
    const std::uint64_t key = pair_key(merge.left, merge.right);
    std::uint64_t slot = pair_slot(key) & pair_mask_;
    while (pairs_[slot] != 0 && pairs_[slot] >> 22 != key) slot = (slot + 1) & pair_mask_;
    // A pair given twice keeps its last rank, as a map filled in order does.
    pairs_[slot] = key << 22 | (r + 1);
  }
  for (std::size_t a = 0; a < 256; ++a) {
    for (std::size_t b = 0; b < 256; ++b) {
      if (byte_ids_[a] == kNoToken || byte_ids_[b] == kNoToken) continue;
      byte_pair_ranks_[a * 256 + b] = rank(byte_ids_[a], byte_ids_[b]);
    }
  }
  if (!whole_words_.empty()) return;
  joinable_bytes_.emplace(byte_ids, merges);
  merge_table16_ = MergeTable16::make(byte_ids, merges);
}

std::uint32_t BpeModel::rank(std::uint32_t left, std::uint32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  for (std::uint64_t slot = pair_slot(key) & pair_mask_;; slot = (slot + 1) & pair_mask_) {
    const std::uint64_t entry = pairs_[slot];
    if (entry == 0) return kNoRank;
    if (entry >> 22 == key) return static_cast<std::uint32_t>(entry & 0x3FFFFF) - 1;
  }
}

std::size_t BpeModel::encode(const std::uint8_t* text, std::size_t size, std::uint32_t* out) const {
  if (!whole_words_.empty()) {
    const auto word = whole_words_.find(std::string(reinterpret_cast<const char*>(text), size));
    if (word != whole_words_.end()) {
      *out = word->second;
      return 1;
    }
  }
  return size <= kShort ? encode_short(text, size, out) : encode_long(text, size, out);
}

// Short words: symbols in a dense array, the lowest rank found by a scan. `ranks[i]` belongs to the
// pair (out[i], out[i + 1]).
std::size_t BpeModel::encode_short(const std::uint8_t* text, std::size_t size,
                                   std::uint32_t* out) const {
  std::uint32_t ranks[kShort + 1];
  std::size_t count = size;
  for (std::size_t i = 0; i < count; ++i) out[i] = byte_ids_[text[i]];
  for (std::size_t i = 0; i + 1 < count; ++i) {
    ranks[i] = byte_pair_ranks_[std::size_t{text[i]} * 256 + text[i + 1]];
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
    out[best] = products_[lowest];
    --count;
    for (std::size_t i = best + 1; i < count; ++i) out[i] = out[i + 1];
    for (std::size_t i = best; i + 1 < count; ++i) ranks[i] = ranks[i + 1];
    if (best > 0) ranks[best - 1] = rank(out[best - 1], out[best]);
    if (best + 1 < count) ranks[best] = rank(out[best], out[best + 1]);
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
  };
  const auto end = static_cast<std::uint32_t>(size);
  std::vector<Symbol> symbols(size);
  std::vector<std::uint64_t> candidates;  // rank, then position: the leftmost of equals comes first
  candidates.reserve(size);
  for (std::uint32_t i = 0; i < end; ++i) {
    symbols[i] = {byte_ids_[text[i]], i + 1, i - 1};
    if (i + 1 == end) break;
    const std::uint32_t r = byte_pair_ranks_[std::size_t{text[i]} * 256 + text[i + 1]];
    if (r != kNoRank) candidates.push_back(std::uint64_t{r} << 32 | i);
  }
  std::priority_queue heap(std::greater<>(), std::move(candidates));
  const auto push = [&](std::uint32_t left, std::uint32_t right) {
    const std::uint32_t r = rank(symbols[left].id, symbols[right].id);
    if (r != kNoRank) heap.push(std::uint64_t{r} << 32 | left);
  };
  while (!heap.empty()) {
    const auto [r, at] = std::pair(static_cast<std::uint32_t>(heap.top() >> 32),
                                   static_cast<std::uint32_t>(heap.top()));
    heap.pop();
    Symbol& left = symbols[at];
    if (left.id == kNoToken || left.next >= end) continue;
    Symbol& right = symbols[left.next];
    if (rank(left.id, right.id) != r) continue;
    left.id = products_[r];
    right.id = kNoToken;
    left.next = right.next;
    if (left.next < end) {
      symbols[left.next].previous = at;
      push(at, left.next);
    }
    if (left.previous < end) push(left.previous, at);
  }
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < end; i = symbols[i].next) out[count++] = symbols[i].id;
  return count;
}

}  // namespace tokpack

#include "core/sentencepiece/piece_trie.hpp"

#include <algorithm>
#include <span>
#include <stdexcept>

namespace tokpack {
namespace {

constexpr std::size_t kBlock = 256;
constexpr std::size_t kMaxUnits = std::size_t{1} << 28;
constexpr std::size_t kTries = 64;  // free units that a node is tried at before new ones are made

}  // namespace

// Gives each node's children a place: the first free units that fit, of a few.
class PieceTrie::Builder {
 public:
  Builder(std::span<const Entry> entries, PieceTrie* trie)
      : entries_(entries), units_(trie->units_), scores_(trie->scores_), ids_(trie->ids_) {
    grow();
    take(0);
    place(0, entries.size(), 0, 0);
  }

 private:
  struct Child {
    std::uint8_t byte;
    std::size_t begin, end;  // of the entries below it
  };

  // The node `at` has the entries [begin, end), which have `depth` bytes in common.
  void place(std::size_t begin, std::size_t end, std::size_t depth, std::uint32_t at) {
    if (entries_[begin].text.size() == depth) {
      ids_[at] = entries_[begin].id;
      scores_[at] = entries_[begin++].score;
      units_[at].base = kEnds;
    }
    if (begin == end) return;
    std::vector<Child> children;
    for (std::size_t i = begin; i < end; ++i) {
      const auto byte = static_cast<std::uint8_t>(entries_[i].text[depth]);
      if (children.empty() || children.back().byte != byte) children.push_back({byte, i, i});
      children.back().end = i + 1;
    }
    const std::uint32_t base = find_base(children);
    units_[at].base |= base;
    for (const Child& child : children) {
      take(base ^ child.byte);
      units_[base ^ child.byte].parent = at;
    }
    for (const Child& child : children) place(child.begin, child.end, depth + 1, base ^ child.byte);
  }

  std::uint32_t find_base(const std::vector<Child>& children) {
    std::uint32_t at = first_free_;
    for (std::size_t tries = 0; tries < kTries && at < units_.size(); ++tries, at = next_[at]) {
      const std::uint32_t base = at ^ children[0].byte;
      if (std::all_of(children.begin(), children.end(),
                      [&](const Child& child) { return is_free(base ^ child.byte); })) {
        return base;
      }
    }
    const auto begin = static_cast<std::uint32_t>(units_.size());
    grow();
    return begin;
  }

  bool is_free(std::uint32_t at) const { return previous_[at] != kTaken; }

  // Free units are a list, by number.
  void grow() {
    const auto begin = static_cast<std::uint32_t>(units_.size());
    if (begin >= kMaxUnits) throw std::invalid_argument("its pieces are too long");
    units_.resize(begin + kBlock);
    scores_.resize(begin + kBlock);
    ids_.resize(begin + kBlock, kNone);
    for (std::uint32_t at = begin; at < begin + kBlock; ++at) {
      previous_.push_back(at == begin ? last_free_ : at - 1);
      next_.push_back(at + 1 == begin + kBlock ? kNone : at + 1);
    }
    (last_free_ == kNone ? first_free_ : next_[last_free_]) = begin;
    last_free_ = begin + kBlock - 1;
  }

  void take(std::uint32_t at) {
    const std::uint32_t before = previous_[at], after = next_[at];
    (before == kNone ? first_free_ : next_[before]) = after;
    (after == kNone ? last_free_ : previous_[after]) = before;
    previous_[at] = kTaken;
  }

  static constexpr std::uint32_t kTaken = kNone - 1;

  std::span<const Entry> entries_;
  std::vector<Unit>& units_;
  std::vector<double>& scores_;
  std::vector<std::uint32_t>& ids_;
  std::vector<std::uint32_t> next_, previous_;
  std::uint32_t first_free_ = kNone, last_free_ = kNone;
};

PieceTrie::PieceTrie(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.text < b.text; });
  if (entries.empty()) {
    units_.resize(kBlock);
    ids_.resize(kBlock, kNone);
    return;
  }
  Builder(entries, this);
}

}  // namespace tokpack

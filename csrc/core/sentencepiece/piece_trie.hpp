// The pieces of a Unigram as a double array: one access to memory for each byte of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokpack {

class PieceTrie {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  struct Entry {
    std::string text;
    std::uint32_t id;
    double score;
  };

  PieceTrie() = default;
  // No text is empty or there twice. Throws std::invalid_argument when they take too much memory.
  explicit PieceTrie(std::vector<Entry> entries);

  // Calls found(end, node, score) for each piece that text[begin, ...) begins with, shorter ones
  // first; `end` is where it ends in the text.
  template <class Found>
  void prefixes(std::string_view text, std::size_t begin, Found&& found) const {
    std::uint32_t at = 0, base = units_[0].base & ~kEnds;
    for (std::size_t end = begin; end < text.size();) {
      const std::uint32_t child = base ^ static_cast<std::uint8_t>(text[end++]);
      const Unit unit = units_[child];
      if (unit.parent != at) return;
      at = child;
      base = unit.base & ~kEnds;
      if (base != unit.base) found(end, child, scores_[child]);
    }
  }

  // The piece of a node.
  std::uint32_t id(std::uint32_t node) const { return ids_[node]; }

  // The piece that is this text, or kNone.
  std::uint32_t find(std::string_view text) const {
    std::uint32_t at = 0;
    for (const char c : text) {
      const std::uint32_t child = (units_[at].base & ~kEnds) ^ static_cast<std::uint8_t>(c);
      if (units_[child].parent != at) return kNone;
      at = child;
    }
    return ids_[at];
  }

 private:
  static constexpr std::uint32_t kEnds = std::uint32_t{1} << 31;  // in a base: a piece ends here

  // Node 0 is the root. The child of a node by a byte is at base ^ byte, if `parent` says so. Free
  // units have no parent. They are what is waited for, so nothing else is in them.
  struct Unit {
    std::uint32_t base = 0;
    std::uint32_t parent = kNone;
  };
  class Builder;

  std::vector<Unit> units_;         // 256 at a time
  std::vector<double> scores_;      // by node: of the piece that ends there
  std::vector<std::uint32_t> ids_;  // by node: the piece that ends there, or kNone
};

}  // namespace tokpack

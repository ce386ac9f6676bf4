// A set of pairs of neighbouring bytes, laid out for a lookup at every byte of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tokpack {

class BytePairs {
 public:
  explicit BytePairs(bool all) : in_(std::size_t{1} << 16, all ? 1 : 0) {}

  void set(std::uint8_t left, std::uint8_t right, bool in) {
    const std::uint8_t pair[2] = {left, right};
    in_[index(pair)] = in ? 1 : 0;
  }
  // 1 when the two bytes here are in the set, else 0.
  std::uint8_t operator()(const std::uint8_t* pair) const { return in_[index(pair)]; }

 private:
  static std::size_t index(const std::uint8_t* pair) {
    std::uint16_t both;
    std::memcpy(&both, pair, 2);
    return both;
  }

  std::vector<std::uint8_t> in_;
};

}  // namespace tokpack

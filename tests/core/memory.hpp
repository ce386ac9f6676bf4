// Input that ends exactly where its allocation ends, so that a sanitizer sees a read behind it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace tokpack::test {

class Exact {
 public:
  explicit Exact(std::string_view bytes) : data_(new std::uint8_t[bytes.size()]) {
    size_ = bytes.size();
    if (size_ != 0) std::memcpy(data_.get(), bytes.data(), size_);
  }
  std::span<const std::uint8_t> span() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t size_;
};

}  // namespace tokpack::test

// A growable array, as std::vector, but resize() leaves new elements uninitialised, which costs
// nothing where they are written next. Throws std::bad_alloc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

namespace tokpack {

template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

  void clear() { size_ = 0; }
  // Room for `count` elements in all; the first size() are kept.
  void reserve(std::size_t count) {
    if (count > capacity_) grow(count);
  }
  void resize(std::size_t count) {
    reserve(count);
    size_ = count;
  }
  void push_back(T value) {
    if (size_ == capacity_) grow(size_ + 1);
    data_[size_++] = value;
  }

 private:
  void grow(std::size_t count) {
    constexpr std::size_t kLimit = std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T);
    if (count > kLimit) throw std::bad_alloc();
    const std::size_t capacity = std::max(count, std::min(2 * capacity_, kLimit));
    void* data = std::realloc(data_, capacity * sizeof(T));
    if (data == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(data);
    capacity_ = capacity;
  }
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace tokpack

// A large zeroed array, on huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tokpack {

// With pages of 4 KiB each random access into tens of megabytes misses the TLB, and processors drop
// prefetches that miss it. So huge pages are asked for, before the memory is first touched. The
// constructor throws std::bad_alloc.
template <class T>
class HugeArray {
 public:
  HugeArray() = default;
  explicit HugeArray(std::size_t size) : size_(size) {
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const std::size_t bytes = size * sizeof(T);
    const bool huge = bytes >= kHugePage;
    const std::size_t alignment = huge ? kHugePage : 64;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_ = static_cast<T*>(std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    if (huge) madvise(data_, rounded, MADV_HUGEPAGE);
#endif
    std::memset(static_cast<void*>(data_), 0, bytes);
  }
  HugeArray(HugeArray&& other) noexcept { *this = std::move(other); }
  HugeArray& operator=(HugeArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;
  ~HugeArray() { std::free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tokpack

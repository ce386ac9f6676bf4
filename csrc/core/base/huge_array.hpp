// A large zeroed array, on huge pages where the system grants them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace tokpack {

// With pages of 4 KiB each random access into tens of megabytes misses the TLB, and processors drop
// prefetches that miss it. So huge pages are asked for, before the memory is first touched; until
// then it costs nothing. The constructor throws std::bad_alloc.
template <class T>
class HugeArray {
 public:
  HugeArray() = default;
  explicit HugeArray(std::size_t size) : size_(size) {
    if (bytes() >= kHugePage) {
      data_ = static_cast<T*>(map());
      return;
    }
    const std::size_t rounded = (bytes() / kLine + 1) * kLine;
    data_ = static_cast<T*>(std::aligned_alloc(kLine, rounded));
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(static_cast<void*>(data_), 0, rounded);
  }
  HugeArray(HugeArray&& other) noexcept { *this = std::move(other); }
  HugeArray& operator=(HugeArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;
  ~HugeArray() {
    if (bytes() >= kHugePage) {
      munmap(static_cast<void*>(data_), mapped());
    } else {
      std::free(data_);
    }
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  static constexpr std::size_t kLine = 64;

  std::size_t bytes() const { return size_ * sizeof(T); }

  std::size_t mapped() const { return (bytes() + kHugePage - 1) / kHugePage * kHugePage; }

  // Zeroed memory of whole huge pages.
  void* map() const {
    void* const all = mmap(nullptr, mapped() + kHugePage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    const std::size_t before = -reinterpret_cast<std::uintptr_t>(all) % kHugePage;
    auto* const begin = static_cast<std::uint8_t*>(all) + before;
    if (before != 0) munmap(all, before);
    munmap(begin + mapped(), kHugePage - before);
#if defined(__linux__)
    madvise(begin, mapped(), MADV_HUGEPAGE);
#endif
    return begin;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tokpack

// A large zeroed array, on huge pages where the system grants them.
#pragma once

#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace tokpack {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Names of Linux that older C libraries lack: MADV_POPULATE_WRITE of 5.14, MADV_COLLAPSE of 6.1.
inline constexpr int kPopulate = 23, kCollapse = 25;

#if defined(__linux__)
inline std::int64_t thread_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Touches fresh memory, a whole number of huge pages, one page after the other. A huge page costs
// 0.1 to 0.3 ms if one is free, and ten times that if the system must first move other pages away,
// or if the host of a virtual machine must provide it. After the first slow page this process takes
// small pages, which the system may join later.
inline void take_pages(std::uint8_t* at, std::size_t size) {
  constexpr std::int64_t kSlow = 1'000'000;  // ns
  static std::atomic<bool> slow = false;
  std::uint8_t* const end = at + size;
  for (; at != end && !slow; at += kHugePage) {
    madvise(at, kHugePage, MADV_HUGEPAGE);
    const std::int64_t begin = thread_nanoseconds();
    *static_cast<volatile std::uint8_t*>(at) = 0;
    if (thread_nanoseconds() - begin > kSlow) slow = true;
  }
  const auto rest = static_cast<std::size_t>(end - at);
  if (madvise(at, rest, kPopulate) == 0) madvise(at, rest, MADV_HUGEPAGE);
}
#endif

// With pages of 4 KiB each random access into tens of megabytes misses the TLB, and processors drop
// prefetches that miss it. The constructor throws std::bad_alloc.
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

  // Moves what lies on small pages to huge ones, which may take milliseconds per page.
  void make_huge() {
#if defined(__linux__)
    if (bytes() >= kHugePage) madvise(static_cast<void*>(data_), mapped(), kCollapse);
#endif
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

 private:
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
    take_pages(begin, mapped());
#endif
    return begin;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tokpack

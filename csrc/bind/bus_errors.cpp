// Reading a page of a mapped file that is no longer there raises SIGBUS, in any code. The handler
// says which file it is, and lets the previous handler end the process. It runs in a broken
// process, so it calls only what POSIX allows in handlers, and takes no memory.
#include "bind/bus_errors.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>

namespace tokpack {
namespace {

struct sigaction before;           // the previous handler
std::atomic<pthread_t> speaker{};  // the thread that writes the message

// A text in a fixed array; what does not fit is left out.
class Line {
 public:
  void put(char c) {
    if (size_ < text_.size()) text_[size_++] = c;
  }
  void put(std::string_view text) {
    for (const char c : text) put(c);
  }
  void put(std::uint64_t number) {
    if (number >= 1000) {
      put(number / 1000);
      put(',');
      for (std::uint64_t unit = 100; unit > 0; unit /= 10) put(char('0' + number / unit % 10));
    } else {
      if (number >= 10) put(number / 10);
      put(char('0' + number % 10));
    }
  }
  std::string_view text() const { return {text_.data(), size_}; }
  void clear() { size_ = 0; }

 private:
  std::array<char, 8192> text_;
  std::size_t size_ = 0;
};

// The words of a line of /proc/self/maps: BEGIN-END RIGHTS OFFSET DEVICE INODE PATH.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}

  std::uint64_t number(unsigned base) {
    std::uint64_t value = 0;
    while (!rest_.empty()) {
      const char c = rest_.front();
      const unsigned digit = c >= 'a' ? unsigned(c - 'a') + 10 : unsigned(c - '0');
      if (c < '0' || digit >= base) break;
      value = value * base + digit;
      rest_.remove_prefix(1);
    }
    if (!rest_.empty()) rest_.remove_prefix(1);  // what it ends with
    return value;
  }
  void pass() {
    const auto end = rest_.find(' ');
    rest_.remove_prefix(end == rest_.npos ? rest_.size() : end + 1);
  }
  std::string_view path() {
    const auto begin = rest_.find('/');
    return begin == rest_.npos ? std::string_view() : rest_.substr(begin);
  }

 private:
  std::string_view rest_;
};

// Writes the message about an address; false if it is not in this mapped file.
bool describe(std::uint64_t address, std::string_view maps_line, Line& said) {
  Words words(maps_line);
  const std::uint64_t begin = words.number(16);
  const std::uint64_t end = words.number(16);
  if (address < begin || address >= end) return false;
  words.pass();
  const std::uint64_t place = words.number(16) + (address - begin);
  words.pass();
  const std::uint64_t inode = words.number(10);
  const std::string_view path = words.path();
  if (path.empty()) return false;
  said.put("tokpack: ");
  for (const char c : path) said.put(c >= 0 && c < ' ' ? '?' : c);
  static std::array<char, 4097> name;
  struct stat now;
  const bool fits = path.size() < name.size();
  if (fits) std::memcpy(name.data(), path.data(), path.size());
  if (fits && stat(name.data(), &now) == 0 && now.st_ino == inode &&
      place >= std::uint64_t(now.st_size)) {
    said.put(" was cut off while it was mapped: it has ");
    said.put(std::uint64_t(now.st_size));
    said.put(" bytes, and byte ");
    said.put(place);
    said.put(" is read. A file that is in use must not be truncated or written in its place: ");
    said.put("replace it by renaming another one\n");
  } else {
    said.put(": byte ");
    said.put(place);
    said.put(" of what is mapped cannot be read: its disk failed, or the file was cut off\n");
  }
  return true;
}

void explain(std::uint64_t address) {
  static Line line, said;
  static std::array<char, 4096> block;
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);  // of Linux alone
  if (maps < 0) return;
  bool found = false;
  for (ssize_t size; !found && (size = read(maps, block.data(), block.size())) > 0;) {
    for (ssize_t i = 0; i < size && !found; ++i) {
      if (block[std::size_t(i)] != '\n') {
        line.put(block[std::size_t(i)]);
        continue;
      }
      found = describe(address, line.text(), said);
      line.clear();
    }
  }
  close(maps);
  const std::string_view text = said.text();
  if (found && write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // nobody listens
}

void on_bus_error(int number, siginfo_t* info, void*) {
  pthread_t first{};
  if (speaker.compare_exchange_strong(first, pthread_self())) {
    if (info->si_code > 0) explain(reinterpret_cast<std::uintptr_t>(info->si_addr));
    sigaction(number, &before, nullptr);
  } else if (pthread_equal(first, pthread_self())) {
    signal(number, SIG_DFL);  // the previous handler returned, as Python's faulthandler does
  } else {
    for (;;) pause();  // until the other thread has ended the process
  }
  // A read that failed is tried again on return, and fails again; a signal that was sent is not.
  if (info->si_code <= 0) raise(number);
}

}  // namespace

void install_bus_handler() {
  static std::once_flag once;
  std::call_once(
      once, [] { pthread_atfork(nullptr, nullptr, [] { bus_errors_unwatched.store(true); }); });
  bus_errors_unwatched.store(false);
  struct sigaction now;
  if (sigaction(SIGBUS, nullptr, &now) != 0 || now.sa_sigaction == &on_bus_error) return;
  struct sigaction action{};
  action.sa_sigaction = &on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  before = now;
  speaker = pthread_t{};
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace tokpack

// The least that a test needs: CHECK shows and counts failures, report() is main's result. MUST is
// for fuzz targets and what they share with tests: it aborts.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tokpack::test {

inline int failures = 0;

inline void check(bool ok, const char* what, const char* file, int line) {
  if (ok) return;
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
  ++failures;
}

inline int report() {
  if (failures == 0) return 0;
  std::fprintf(stderr, "%d checks failed\n", failures);
  return 1;
}

}  // namespace tokpack::test

#define CHECK(condition) ::tokpack::test::check((condition), #condition, __FILE__, __LINE__)

#define MUST(condition)                               \
  do {                                                \
    CHECK(condition);                                 \
    if (::tokpack::test::failures != 0) std::abort(); \
  } while (false)

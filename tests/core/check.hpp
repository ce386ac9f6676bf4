// The least that a test needs: CHECK counts and shows failures, report() is main's result.
#pragma once

#include <cstdio>

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

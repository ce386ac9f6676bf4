/* Preloaded: lets one system call under a folder fail, do half of its work, or kill the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum kind { FAIL_EIO = 1, FULL = 2, SHORT = 3, KILL = 4 };

static char folder[PATH_MAX]; /* empty: nothing is counted */
static long count, at;        /* calls so far; the one that the fault meets, from 1 */
static int kind;
static char met[64 + PATH_MAX]; /* the name of that call, and of its file */
static __thread char file_met[PATH_MAX];

void fault_arm(const char *where, long number, int what) {
  snprintf(folder, sizeof folder, "%s", where);
  count = 0;
  at = number;
  kind = what;
  met[0] = 0;
}
long fault_count(void) { return count; }
const char *fault_met(void) { return met; }

static int inside(const char *path) {
  size_t length = strlen(folder);
  if (!length || !path || strncmp(path, folder, length) || (path[length] && path[length] != '/'))
    return 0;
  const char *slash = strrchr(path, '/');
  snprintf(file_met, sizeof file_met, "%s", slash + 1);
  return 1;
}

static int open_inside(int file) {
  char link[64], path[PATH_MAX];
  if (!folder[0]) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return inside(path);
}

/* 0: go on; -1: fail with errno set; 1: do half of it. */
static int meet(int counted, const char *name, int writes) {
  if (!counted) return 0;
  ++count;
  if (kind == FULL && writes && count > at && at > 0) { /* a full disk stays full */
    errno = ENOSPC;
    return -1;
  }
  if (count != at) return 0;
  snprintf(met, sizeof met, "%s %s", name, file_met);
  if (kind == KILL) raise(SIGKILL);
  if (kind == SHORT) return writes ? 1 : 0;
  errno = kind == FULL ? ENOSPC : EIO;
  return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define WRITES(name, parameters, arguments, file)                  \
  ssize_t name parameters {                                        \
    int what = meet(open_inside(file), #name, 1);                  \
    if (what < 0) return -1;                                       \
    if (what > 0 && size > 1) size /= 2;                           \
    return REAL(name) arguments;                                   \
  }
WRITES(write, (int file, const void *data, size_t size), (file, data, size), file)
WRITES(pwrite, (int file, const void *data, size_t size, off_t to), (file, data, size, to), file)
WRITES(pwrite64, (int file, const void *data, size_t size, off64_t to), (file, data, size, to),
       file)
WRITES(copy_file_range,
       (int from, off64_t *begin, int file, off64_t *to, size_t size, unsigned flags),
       (from, begin, file, to, size, flags), file)

#define CALL(name, parameters, arguments, counted, writes)     \
  int name parameters {                                        \
    if (meet(counted, #name, writes) < 0) return -1;           \
    return REAL(name) arguments;                               \
  }
CALL(fsync, (int file), (file), open_inside(file), 0)
CALL(fdatasync, (int file), (file), open_inside(file), 0)
CALL(ftruncate, (int file, off_t size), (file, size), open_inside(file), 1)
CALL(ftruncate64, (int file, off64_t size), (file, size), open_inside(file), 1)
CALL(rename, (const char *from, const char *to), (from, to), inside(to), 0)
CALL(link, (const char *from, const char *to), (from, to), inside(to), 0)
CALL(unlink, (const char *path), (path), inside(path), 0)
CALL(rmdir, (const char *path), (path), inside(path), 0)
CALL(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), inside(to), 0)
CALL(linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags),
     inside(to), 0)
CALL(unlinkat, (int a, const char *path, int flags), (a, path, flags), inside(path), 0)

int fallocate(int file, int mode, off_t begin, off_t size) {
  if (meet(open_inside(file), "fallocate", 1) < 0) return -1;
  return REAL(fallocate)(file, mode, begin, size);
}
int sync_file_range(int file, off64_t begin, off64_t size, unsigned flags) {
  if (meet(open_inside(file), "sync_file_range", 0) < 0) return -1;
  return REAL(sync_file_range)(file, begin, size, flags);
}

#define SPACE(name, type)                                           \
  int name(int file, type begin, type size) {                       \
    if (meet(open_inside(file), #name, 1) < 0) return errno;        \
    return REAL(name)(file, begin, size);                           \
  }
SPACE(posix_fallocate, off_t)
SPACE(posix_fallocate64, off64_t)

"""Files that appear whole and durable, or not at all. Only this module writes, syncs and renames.

A file is written beside its final name, with an ending of our own. It is synced, then renamed, then
its folder is synced. So after a crash or power loss there is either the whole old file or the whole
new one. A leftover unfinished file is replaced by the next writer of the same name.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from tokpack.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


UNFINISHED = ".tokpack.tmp"  # the ending of a file that is being written
NAMES = ".tokpack.names"  # the ending of a note beside the last of several files, see AtomicFiles
BUFFER = 1 << 20
_SYNC_FILE_RANGE_WRITE = 2  # Linux, man 2 sync_file_range
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def cannot_write(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError into an OutputError that names ``path``; ENOMEM into a MemoryError."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError from error
        raise _failure(os.fsdecode(path), error) from error


@contextmanager
def cannot_read(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError into an InputError that names ``path``."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(path)
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error


def _failure(path: str, error: OSError) -> OutputError:
    # The error is made in a function of its own: held by a local variable of the frame that raises
    # it, it would be a cycle (error, traceback, frame) that keeps files open until garbage is
    # collected.
    failure = OutputError(f"cannot write {path}: {error.strerror or error}")
    failure.errno = error.errno
    if failure.no_space or error.errno == errno.EIO:  # the machine failed
        failure.exit_code = 2
    return failure


def replace_file(
    path: str | os.PathLike[str], chunks: Iterable[bytes], *, fsync: bool = True
) -> None:
    """Make ``path`` hold ``chunks``, atomically, and durably with ``fsync``. Raises OutputError."""
    with AtomicFiles() as staged:
        staged.write(os.fsdecode(path), chunks)
        staged.commit(fsync=fsync)


def create_file(path: str, content: bytes) -> bool:
    """Write a new file, whole and durably. Returns False if the name is taken.

    If several programs try at the same time, on any machines, exactly one succeeds; without hard
    links on the file system this is not certain. Raises OutputError.
    """
    # A link fails if the name is taken, a rename would not. The random name keeps the unfinished
    # files of several programs apart.
    beside = f"{path}.{os.urandom(4).hex()}"
    with AtomicFiles() as staged:
        staged.write(beside, [content])
        staged.seal()
        with cannot_write(path):
            try:
                os.link(beside + UNFINISHED, path)
            except FileExistsError:
                return False
            except OSError:  # a file system without links
                if os.path.lexists(path):
                    return False
                rename(beside + UNFINISHED, path, fsync=False)
            try:
                sync_folder(os.path.dirname(path))
            except BaseException:
                os.unlink(path)
                raise
    return True


def replace_json(path: str | os.PathLike[str], value: Any, *, fsync: bool = True) -> None:
    """Make ``path`` hold ``value`` as ASCII JSON, as ``replace_file`` does."""
    replace_file(path, [json.dumps(value, ensure_ascii=True).encode()], fsync=fsync)


class AtomicFiles:
    """New files that get their names together. A context, which removes files without a name.

    If two programs write the same name at the same time, the second replaces the first one's
    unfinished file, and the first notices this when it commits, and fails.
    """

    def __init__(self) -> None:
        self._files: dict[str, BinaryIO] = {}
        self._created: dict[str, os.stat_result] = {}

    def create(self, path: str) -> BinaryIO:
        """Open a new file for writing and reading that will become ``path``. Raises OutputError."""
        with cannot_write(path):
            file = self._opened(path + UNFINISHED)
            self._created[path] = os.fstat(file.fileno())
        self._files[path] = file
        return file

    def _opened(self, name: str) -> BinaryIO:
        """A new file of that name; one that a killed run has left is removed. OSError."""
        remove_file(name)
        return open(name, "xb+", buffering=BUFFER)

    def write(self, path: str, chunks: Iterable[bytes]) -> BinaryIO:
        """``create`` a file that holds ``chunks``. Raises OutputError."""
        file = self.create(path)
        with cannot_write(path):
            file.writelines(chunks)
        return file

    def seal(self, *, fsync: bool = True) -> None:
        """Sync and close the files made so far, so that they are not all open. OutputError."""
        for path, file in self._files.items():
            if not file.closed:
                with cannot_write(path):
                    file.flush()
                    if fsync:
                        os.fsync(file.fileno())
                    file.close()

    def commit(self, stale: Iterable[str] = (), *, fsync: bool = True) -> None:
        """Sync the files, remove the ``stale`` ones, then rename the files in order of creation.

        So the last one created, such as a manifest, appears only after all others. Without
        ``fsync`` the result is just as atomic, but may not survive a power loss. After an error all
        new files are removed, so that nobody takes a part for the whole; only if all were renamed,
        and the last sync failed, those that replaced an old file stay. Raises OutputError.
        """
        self.seal(fsync=fsync)
        for path in self._files:
            if not self.owns(path):
                raise OutputError(
                    f"{path}{UNFINISHED}: another program is writing it or has removed it: "
                    "write to another name"
                )
        new = [path for path in self._files if not os.path.lexists(path)]
        named: list[str] = []
        with self._named_together():
            try:
                for path in stale:
                    remove_file(path)
                for path in list(self._files):
                    with cannot_write(path):
                        rename(path + UNFINISHED, path, fsync=False)
                        named.append(path)
                        del self._files[path]
                        if fsync:
                            sync_folder(os.path.dirname(path))
            except BaseException:
                for path in named if self._files else set(named).intersection(new):
                    with suppress(OSError):
                        os.unlink(path)
                raise

    @contextmanager
    def _named_together(self) -> Iterator[None]:
        """Write a note beside the last of the files that are about to be renamed.

        If the process is killed between renames, ``replaceable.remove_partial`` learns from the
        note which files are incomplete outputs.
        """
        if len(self._files) < 2:
            yield
            return
        note = list(self._files)[-1] + NAMES
        files = {os.path.abspath(path): same_file(path + UNFINISHED) for path in self._files}
        with cannot_write(note), open(note, "w", encoding="ascii") as file:
            json.dump(files, file)
        try:
            yield
        finally:
            with suppress(OSError):
                os.unlink(note)

    def owns(self, path: str) -> bool:
        """Whether the unfinished file is still the one that ``create`` opened."""
        try:
            named = os.stat(path + UNFINISHED)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, self._created[path])

    def __enter__(self) -> AtomicFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for path, file in self._files.items():
            # Ignore errors here: another one is being raised, and after a failed write even closing
            # may fail.
            is_ours = False
            with suppress(OSError):
                is_ours = self.owns(path)
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                if is_ours:
                    os.unlink(path + UNFINISHED)
        self._files.clear()


class Identity(NamedTuple):
    """Facts of a file that change when it is written to or replaced."""

    device: int
    inode: int
    size: int
    modified: int  # nanoseconds

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """The identity of the file that has this status."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def identity(path: str, *, follow_links: bool = True) -> Identity | None:
    """The identity of the file at a path, or None if there is none."""
    try:
        return Identity.of(os.stat(path, follow_symlinks=follow_links))
    except (OSError, ValueError):  # ValueError: an impossible name
        return None


def same_file(path: str) -> tuple[int, int] | None:
    """Device and inode of a file, or None if there is none.

    They are the same for all hard links of a file, and do not change when it is written to.
    """
    file = identity(path)
    return file and file[:2]


def open_regular(path: str) -> BinaryIO:
    """Open a file to read. OSError for a pipe and the like, which might never open."""
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except ValueError as error:  # an impossible name: a NUL, or half of a surrogate pair
        raise FileNotFoundError(errno.ENOENT, str(error), path) from None
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file", path)


def make_parent(path: str) -> None:
    """Make the folder of ``path``, and those above it. Raises OutputError."""
    with cannot_write(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def remove_file(path: str) -> None:
    """Remove a file, if it exists. Raises OutputError."""
    with cannot_write(path), suppress(FileNotFoundError):
        os.unlink(path)


def rename(old: str | os.PathLike[str], new: str | os.PathLike[str], *, fsync: bool = True) -> None:
    """Give a file, or a folder, another name; durably with ``fsync``. Raises OSError."""
    os.replace(old, new)
    if fsync:
        sync_folder(os.path.dirname(os.fspath(new)))


def start_writeback(file: int, begin: int, size: int) -> None:
    """Ask the system to begin writing a range of an open file to the disk; only Linux can.

    This makes nothing durable, but a later sync takes less time.
    """
    if size and (call := _sync_file_range()) is not None:
        call(file, begin, size, _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The function of the C library, or None if it has none or the system is not Linux."""
    if sys.platform != "linux":
        return None
    import ctypes  # 3 ms

    try:
        call = ctypes.CDLL(None).sync_file_range
    except AttributeError:
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


def sync_data(file: int) -> None:
    """Make the bytes and the size of an open file durable. Raises OSError."""
    os.fdatasync(file) if hasattr(os, "fdatasync") else os.fsync(file)


def sync_file(path: str) -> None:
    """Make the bytes of a file durable. Raises OutputError."""
    with cannot_write(path):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def sync_folder(path: str) -> bool:
    """Make the names in a folder durable. False if its file system cannot. Raises OSError."""
    file = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
        return True
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:  # errors for "folders cannot be synced here"
            raise
        return False
    finally:
        os.close(file)


_BLOCK = 1 << 20
_NOT_HERE = (
    errno.EXDEV,
    errno.ENOSYS,
    errno.EINVAL,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EBADF,
    errno.ETXTBSY,
)


def copy_range(source: int, target: int, begin: int, end: int, at: int) -> None:
    """Copy bytes [begin, end) of one file to offset ``at`` of another, in the kernel if it can.

    Raises OSError.
    """
    if not hasattr(os, "copy_file_range"):
        _copy_by_hand(source, target, begin, end, at)
        return
    while begin < end:
        try:
            count = os.copy_file_range(source, target, end - begin, begin, at)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            count = 0
        if not count:  # some file systems copy nothing and report no error
            _copy_by_hand(source, target, begin, end, at)
            return
        begin += count
        at += count


def _copy_by_hand(source: int, target: int, begin: int, end: int, at: int) -> None:
    while begin < end:
        block = os.pread(source, min(_BLOCK, end - begin), begin)
        if not block:
            raise OSError(errno.EIO, "the file is shorter than it was")
        begin += len(block)
        view = memoryview(block)
        while view:
            count = os.pwrite(target, view, at)
            view = view[count:]
            at += count

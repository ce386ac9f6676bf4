"""Local copies of objects, and of ranges of them, which all processes of this machine share.

    $TOKPACK_CACHE/stores/KEY/NAME            the object; its time is when it was last used
                             /NAME.sum        the checksum of its blocks
                             /.lock           held by the process that fetches it

KEY is a hash of URL, size, ETag and range, so a replaced object has another entry. A copy that does
not match its checksum is fetched again. Indices, tables and tokenizers are copied as a whole,
because they are mapped; of a .bin only blocks are copied, for an order of blocks.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from tokpack.errors import OutputError, UsageError
from tokpack.machine import cache_root
from tokpack.quantities import size_of
from tokpack.storage.disk import AtomicFiles, cannot_write, try_flock, turn
from tokpack.storage.disk.blocks import BlockSums, checksum_of_sums, file_sums
from tokpack.storage.objects.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.storage.objects.urls import StoredObject

    Read = Callable[[StoredObject, int, int], bytes]  # bytes [begin, end) of an object

SIZE = "TOKPACK_CACHE_SIZE"
_DEFAULT_BYTES = 50 * 10**9
_SUM, _LOCK = ".sum", ".lock"
_LONGEST_NAME = 200
_SCANS = 64  # scans of the cache while as much is fetched as fits into it

_checked: set[tuple[str, int, int]] = set()  # copies whose checksum this process has compared
_scanning = threading.Lock()
_unscanned: int | None = None  # bytes fetched since this process last scanned the cache


def _after_fork() -> None:
    global _scanning  # noqa: PLW0603
    _scanning = threading.Lock()  # a thread that the fork lacks may have held the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def copy_of(source: StoredObject, content: Callable[[], Iterable[bytes]]) -> str:
    """The path of a local copy of an object; if there is none, ``content`` gives its bytes.

    The file may be removed to make space for others: open it at once. Raises what
    ``content`` raises, OutputError if the cache cannot be written, UsageError if it is too small.
    """
    path = _path(source) / shown(source.url).rpartition("/")[2][-_LONGEST_NAME:]
    _keep(path, source, source.size, content)
    return str(path)


def keep_range(source: StoredObject, begin: int, end: int, read: Read) -> None:
    """Keep a copy of bytes [begin, end) of an object, read by ``read``. Raises as ``copy_of``."""
    _keep(_range(source, begin, end), source, end - begin, lambda: [read(source, begin, end)])


def kept_range(source: StoredObject, begin: int, end: int) -> str | None:
    """The path of a copy of bytes [begin, end) of an object, or None if they are not kept.

    The file may be removed when space is needed for others.
    """
    path = _range(source, begin, end)
    return str(path) if _has_version(source) and _is_whole(path) else None


def _range(source: StoredObject, begin: int, end: int) -> Path:
    return _path(source, begin, end) / f"{begin}-{end}"


def _keep(
    path: Path, source: StoredObject, size: int, content: Callable[[], Iterable[bytes]]
) -> None:
    """Make a copy of ``content`` at ``path``, if there is none; only one process fetches it."""
    versioned = _has_version(source)
    if versioned and _is_whole(path):
        return
    # Look again after the turn: another process may have fetched it meanwhile.
    try:
        with cannot_write(path.parent), turn(str(path.parent / _LOCK)):
            if not (versioned and _is_whole(path)):
                _make_room(source, size, path.parent)
                _fetch(content(), path)
    except OutputError as error:
        if not _is_whole(path):  # without locks, another process may have fetched it
            raise OutputError(f"{error}: set TOKPACK_CACHE to a folder for it") from error


def _has_version(source: StoredObject) -> bool:
    """Whether an ETag or a time shows that a copy is of the current object."""
    return bool(source.etag or source.modified_ns)


def _path(source: StoredObject, *span: int) -> Path:
    """The folder of an entry."""
    what = repr((shown(source.url), source.size, source.etag, source.modified_ns, *span))
    return cache_root() / "stores" / xxhash.xxh3_128_hexdigest(what.encode())


def _is_whole(path: Path) -> bool:
    """Whether a copy exists and matches its checksum; then it is marked as used now."""
    try:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            copy = (str(path), status.st_ino, status.st_size)
            if copy not in _checked:
                sums = file_sums(file.fileno(), 0, status.st_size) or b""
                if Path(f"{path}{_SUM}").read_text("ascii") != checksum_of_sums(sums):
                    return False
                _checked.add(copy)
            with suppress(OSError):
                os.utime(file.fileno())
            return True
    except (OSError, UnicodeDecodeError):
        return False


def _fetch(content: Iterable[bytes], path: Path) -> None:
    sums = BlockSums()
    with AtomicFiles() as staged:
        file, note = staged.create(str(path)), staged.create(f"{path}{_SUM}")
        for data in content:
            with cannot_write(path):
                file.write(data)
            sums.add(memoryview(data))
        note.write(checksum_of_sums(sums.finish()).encode())
        # No sync: what a power loss destroys does not match its checksum, and is fetched again.
        staged.commit(fsync=False)


def _make_room(source: StoredObject, size: int, folder: Path) -> None:
    """Remove the copies that were used longest ago, until there is space for another.

    Scanning the cache takes long, so a process does it only after fetching a 64th of its size.
    """
    global _unscanned  # noqa: PLW0603
    limit = _limit()
    if size > limit:
        raise UsageError(f"{shown(source.url)} has {size:,} bytes, the cache {limit:,}: set {SIZE}")
    with _scanning:
        if _unscanned is not None and (_unscanned + size) * _SCANS < limit:
            _unscanned += size
            return
        _unscanned = 0
    entries = sorted(_entries(folder.parent), reverse=True)
    used = size
    for _, its, entry in entries:
        used += its
        if used > limit and entry != folder:
            _remove(entry)


def _entries(root: Path) -> Iterator[tuple[int, int, Path]]:
    """The time of last use, bytes and folder of each entry."""
    for folder in root.iterdir():
        with suppress(OSError):  # others remove entries too
            files = [one.stat() for one in folder.iterdir()]
            last = max((one.st_mtime_ns for one in files), default=0)
            yield last, sum(one.st_size for one in files), folder


def _remove(folder: Path) -> None:
    """Remove an entry, unless a process is fetching it.

    A process that has its file open or mapped keeps the bytes.
    """
    with suppress(OSError), open(folder / _LOCK, "rb") as file:
        if try_flock(file.fileno()) is not False:
            shutil.rmtree(folder, ignore_errors=True)


def _limit() -> int:
    text = os.environ.get(SIZE, "")
    if not text:
        return _DEFAULT_BYTES
    try:
        return size_of(text)
    except ValueError as error:
        raise UsageError(f"{SIZE}: {error}") from None

"""Copies of objects on this machine, for files that are mapped: indices, traces, tokenizers.

    $TOKPACK_CACHE/stores/KEY/NAME            the object; its time is when it was used last
                             /NAME.sum        the checksum of its blocks
                             /.lock           held by the process that fetches it

KEY is of the URL, the size and the ETag, so an object that was replaced is another entry. A copy
whose bytes are not those of its checksum is fetched again.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from tokpack.errors import OutputError, UsageError
from tokpack.files.blocks import BlockSums, checksum_of_sums, sums_of
from tokpack.files.cache_root import cache_root
from tokpack.files.durable import Staged, cannot_write
from tokpack.files.lock import try_flock
from tokpack.quantities import size_of
from tokpack.stores.access import Reader
from tokpack.stores.urls import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.stores.urls import StoredObject

SIZE = "TOKPACK_CACHE_SIZE"
_DEFAULT_BYTES = 50 * 10**9
_SUM, _LOCK = ".sum", ".lock"
_LONGEST_NAME = 200
_READ = 4 << 20
_POLL_SECONDS = 0.05

_checked: set[tuple[str, int, int]] = set()  # copies whose checksums this process has seen


def copy_of(found: StoredObject) -> str:
    """The file with the bytes of an object; fetched, by one process, where it is not there.

    It may be removed when others need its place: open it at once. InputError where the store does
    not give it, OutputError where the cache cannot be written, UsageError where it is too small.
    """
    folder = _folder() / _key(found)
    path = folder / shown(found.url).rpartition("/")[2][-_LONGEST_NAME:]
    # Without an ETag or a time nothing says whether the copy is the object.
    known = bool(found.etag or found.modified_ns)
    if known and _is_whole(path):
        return str(path)
    try:
        with _turn(folder):
            if not (known and _is_whole(path)):
                _make_room(found, folder)
                _fetch(found, path)
    except OutputError as error:
        if not _is_whole(path):  # another process may have fetched it, where there are no locks
            raise OutputError(f"{error}: set TOKPACK_CACHE to a folder for it") from error
    return str(path)


def _folder() -> Path:
    return cache_root() / "stores"


def _key(found: StoredObject) -> str:
    what = repr((shown(found.url), found.size, found.etag, found.modified_ns))
    return xxhash.xxh3_128_hexdigest(what.encode())


def _is_whole(path: Path) -> bool:
    """Whether a copy is there with all of its bytes; it is the one used last then."""
    try:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            known = (str(path), status.st_ino, status.st_size)
            if known not in _checked:
                sums = sums_of(file.fileno(), 0, status.st_size) or b""
                if Path(f"{path}{_SUM}").read_text("ascii") != checksum_of_sums(sums):
                    return False
                _checked.add(known)
            with suppress(OSError):
                os.utime(file.fileno())
            return True
    except (OSError, UnicodeDecodeError):
        return False


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait until no other process fetches into ``folder``; where there are no locks, go on."""
    with cannot_write(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / _LOCK, "ab")  # noqa: SIM115
    with file:
        while try_flock(file.fileno()) is False:
            time.sleep(_POLL_SECONDS)
        yield


def _fetch(found: StoredObject, path: Path) -> None:
    sums = BlockSums()
    with Staged() as staged:
        file, note = staged.create(str(path)), staged.create(f"{path}{_SUM}")
        reader = Reader(found, 0, found.size)
        try:
            with cannot_write(path):
                while data := reader.read(_READ):
                    file.write(data)
                    sums.add(memoryview(data))
        finally:
            reader.close()
        note.write(checksum_of_sums(sums.finish()).encode())
        # Without a sync: after a power loss the checksum says what is missing.
        staged.commit(fsync=False)


def _make_room(found: StoredObject, own: Path) -> None:
    """Remove the copies used longest ago, until there is room for another."""
    limit = _limit()
    if found.size > limit:
        raise UsageError(
            f"{shown(found.url)} has {found.size:,} bytes, the cache {limit:,}: set {SIZE}"
        )
    entries = sorted(_entries(own.parent), reverse=True)
    used = found.size
    for _, size, folder in entries:
        used += size
        if used > limit and folder != own:
            _remove(folder)


def _entries(root: Path) -> Iterator[tuple[int, int, Path]]:
    """When an entry was used last, its bytes and its folder."""
    for folder in root.iterdir():
        with suppress(OSError):  # others remove entries too
            files = [one.stat() for one in folder.iterdir()]
            last = max((one.st_mtime_ns for one in files), default=0)
            yield last, sum(one.st_size for one in files), folder


def _remove(folder: Path) -> None:
    """Remove an entry that nobody is fetching. Who has its file open or mapped keeps it."""
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

"""Arrays that an order needs, kept in a folder by what they were made of.

A file is complete or absent: it is written beside its name, synced and renamed. What is in it is a
function of its name alone, so any process on any machine writes the same bytes.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokpack.errors import InputError
from tokpack.files.durable import rename, sync_data
from tokpack.files.lock import try_flock, turn
from tokpack.indexed import digest_file
from tokpack.samples.cache import format as cache_format
from tokpack.samples.cache.format import SUFFIX, CacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from tokpack.samples.cache.format import ChunkedArray

    Arrays = dict[str, npt.NDArray[Any]]
    Build = Callable[[], Iterable[ChunkedArray]]

_TEMPORARY = re.compile(r"\..+-[0-9a-f]{32}\..+\.tmp")
_WAIT_SECONDS = 1800.0  # for another process that builds the same; then it is built here too
# A temporary file that is older, and not locked, was left by a crash; the second number is for
# file systems without locks.
_LEFT_SECONDS = 60.0
_LEFT_UNLOCKABLE_SECONDS = 86400.0

_log = logging.getLogger(__name__)
_said: set[str] = set()
_verified: set[tuple[str, int, int, int]] = set()  # files whose checksums this process has seen


@dataclass(frozen=True)
class CacheFile:
    """One entry of a cache, or what would be in it where it cannot be written (``path`` None)."""

    arrays: Arrays = field(repr=False)
    path: str | None
    built: bool  # by this call
    seconds: float

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


class IndexCache:
    """A folder of entries, each named by the key of its arrays.

    The key is the XXH3-128 of the canonical JSON of ``kind``, the format version and ``settings``;
    these hold the fingerprint of the data and every setting that decides the arrays. An entry of
    another key, or with a file that is missing, truncated or damaged, is never used: it is built
    again and replaced, which is logged. The checksum of every array is checked when a process opens
    its file for the first time, at some GB/s.

    Any number of processes may ask for the same at once. One builds while the others on a file
    system with locks wait; elsewhere each may build, and all write the same bytes. A folder that
    cannot be written is no error: the arrays are built in memory, and that is logged once.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)

    def path(self, kind: str, settings: Mapping[str, Any]) -> str:
        """The JSON of these arrays, which tells that all are there, whether it is or not."""
        return os.path.join(self.folder, f"{kind}-{cache_format.key(kind, settings)}{SUFFIX}")

    def file(self, kind: str, settings: Mapping[str, Any], build: Build) -> CacheFile:
        """The arrays of ``settings``, read-only and mapped; built and written when they are absent.

        ``build`` returns them as parts, which are written while they are made; it may be called
        twice. Whatever it raises comes through, and leaves nothing behind.
        """
        began = time.perf_counter()
        path = self.path(kind, settings)
        found = self._open(path, kind, settings)
        built = False
        if found is None:
            try:
                found, built = self._build_once(path, kind, settings, build)
            except OSError as error:
                _say_once(
                    f"{path}: cannot be written: {error.strerror or error}; the index is built in "
                    "memory, by every process for itself: name a cache folder that can be written",
                )
                held = _read_only({part.name: part.array() for part in build()})
                return CacheFile(held, None, True, time.perf_counter() - began)
        return CacheFile(found, path, built, time.perf_counter() - began)

    def _open(self, path: str, kind: str, settings: Mapping[str, Any]) -> Arrays | None:
        if not os.path.lexists(path):
            return None
        try:
            return cache_format.read(path, kind, settings, _verify_once)
        except (CacheError, InputError, OSError) as error:
            _say_once(f"{error}; {os.path.basename(path)} is built again")
            return None

    def _build_once(
        self, path: str, kind: str, settings: Mapping[str, Any], build: Build
    ) -> tuple[Arrays, bool]:
        """The arrays, and whether this process has built them."""
        with _turn(path) as waited:
            if waited and (found := self._open(path, kind, settings)) is not None:
                return found, False
            _remove_leftovers(self.folder)
            cache_format.write(path, kind, settings, build(), _write)
        found = self._open(path, kind, settings)
        if found is None:
            raise OSError(None, "what was written cannot be read back")
        return found, True


def _verify_once(path: str, checksum: str) -> None:
    """Check a file that this process has not seen before. CacheError, InputError, OSError."""
    status = os.stat(path)
    known = (path, status.st_ino, status.st_mtime_ns, status.st_size)
    if known not in _verified:
        if digest_file(path)["xxh3_128"] != checksum:
            raise CacheError(f"{path}: its checksum is wrong")
        _verified.add(known)


def _write(path: str, chunks: Iterable[bytes]) -> None:
    folder, name = os.path.split(path)
    unique = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    temporary = os.path.join(folder, f".{name}.{unique}.tmp")
    with open(temporary, "xb") as file:
        try:
            try_flock(file.fileno())  # so that nobody takes it for a leftover
            file.writelines(chunks)
            file.flush()
            sync_data(file.fileno())
            rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


@contextmanager
def _turn(path: str) -> Iterator[bool]:
    """Wait until no other process builds ``path``; True where one may have made it meanwhile."""
    folder, name = os.path.split(path)
    lock = os.path.join(folder, f".{name}.lock")
    with turn(lock, _WAIT_SECONDS) as waited:
        try:
            yield waited or os.path.exists(path)
        finally:
            with suppress(OSError):
                os.unlink(lock)


def _remove_leftovers(folder: str) -> None:
    """Remove temporary files that nobody writes any more."""
    now = time.time()
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                with suppress(OSError):
                    age = now - entry.stat().st_mtime
                    if age > _LEFT_SECONDS and _is_dead(entry, age):
                        os.unlink(entry.path)


def _is_dead(entry: os.DirEntry[str], age: float) -> bool:
    with open(entry.path, "rb") as file:
        free = try_flock(file.fileno())
    return age > _LEFT_UNLOCKABLE_SECONDS if free is None else free


def _read_only(arrays: Arrays) -> Arrays:
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log.warning("%s", text)

"""What a process does with stores, where it may open them itself."""

from __future__ import annotations

import functools
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from tokpack.errors import StoreError, UnreachableError
from tokpack.stores import listing
from tokpack.stores.ahead import PrefetchReader
from tokpack.stores.cache import copy_of, keep_range
from tokpack.stores.filesystems import FileSystems
from tokpack.stores.objects import (
    PART_BYTES,
    ChunkedObject,
    ObjectStores,
    matches,
)
from tokpack.stores.ranges import LocalFile, Range, file_chunks
from tokpack.stores.settings import patience_seconds
from tokpack.stores.trouble import (
    NO_BUCKET,
    ChangedError,
    MissingError,
    TransientError,
    changed,
)
from tokpack.stores.urls import StoredObject, place_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from tokpack.stores.objects import PutMode

T = TypeVar("T")

_THREADS = 32
_COPIES = 8
_TURNS = 4  # times the patience: how long something is tried again
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class Service:
    """Lists, reads and writes objects, trying again what may succeed. Raises StoreError."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "tokpack-stores")
        # Whoever copies waits for requests, and so is not one of those who make them.
        self._copiers = ThreadPoolExecutor(_COPIES, "tokpack-copies")
        self._readers: dict[int, PrefetchReader] = {}
        self._asked: dict[int, list[Future[Any]]] = {}
        self._amounts = [0, 0, 0]
        self._answered: set[tuple[str, str]] = set()  # kinds and roots of places
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def find(self, url: str) -> list[listing.ListedObjects]:
        """What a URL names: see ``listing.find``."""
        return self._again(url, lambda: listing.find(_store(url), url), first=True)

    def objects_in(self, folder: str) -> list[StoredObject]:
        """The objects of a folder, without those of folders in it."""
        return self._again(folder, lambda: _store(folder).level(folder), first=True)[1]

    def stat(self, url: str) -> StoredObject | None:
        """The object of a URL; None where there is none."""
        return self._again(url, lambda: _store(url).stat(url), first=True)

    def stats(self, urls: Sequence[str]) -> list[StoredObject | None]:
        """``stat`` of each."""
        return list(self._pool.map(self.stat, urls))

    def copies(self, objects: Sequence[StoredObject]) -> list[str]:
        """``cache.copy_of`` each."""

        def copy(one: StoredObject) -> str:
            return copy_of(one, lambda: self._chunks([Range(one, 0, one.size)]))

        return list(self._copiers.map(copy, objects))

    def missing(self, url: str) -> str:
        """Why there is no object of a URL, where more is wrong than its name; else ""."""
        try:
            next(iter(_store(url).below(url)), None)
        except StoreError as error:
            return str(error) if NO_BUCKET in str(error) else ""
        except (ChangedError, MissingError, TransientError):
            pass
        return ""

    def heads(self, objects: Sequence[StoredObject], size: int) -> list[bytes]:
        """The first bytes of objects, ``size`` at most of each."""
        read = functools.partial(self.read, begin=0)
        ends = [min(size, one.size) for one in objects]
        return list(self._pool.map(lambda one, end: read(one, end=end), objects, ends))

    def read(self, found: StoredObject, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of an object."""
        return bytes(self._read(found, begin, end))

    def contents(self, urls: Sequence[str], most: int) -> list[bytes | None]:
        """Small objects as they are now, ``most`` bytes at most of each; None where none is."""

        def one(url: str) -> bytes | None:
            return self._again(url, lambda: _content(url, most), first=True)

        return list(self._pool.map(one, urls))

    def open(self, found: StoredObject, begin: int, until: int) -> int:
        """Begin to read at ``begin``, at full speed up to ``until``; gives the reader's number."""
        number = next(self._numbers)
        fetch = functools.partial(self._read, found)
        self._readers[number] = PrefetchReader(
            fetch, self._pool, begin=begin, until=until, size=found.size
        )
        return number

    def next(self, number: int, wanted: int) -> Any:
        """The next bytes of a reader; none at the end."""
        return self._readers[number].next(wanted)

    def close(self, number: int) -> None:
        """End a reader."""
        self._readers.pop(number).close()

    def ask(self, wanted: Sequence[tuple[StoredObject, int, int]]) -> int:
        """Begin to read ranges of objects; gives a number for ``take``."""
        number = next(self._numbers)
        self._asked[number] = [self._pool.submit(self.read, *one) for one in wanted]
        return number

    def keep(self, wanted: Sequence[tuple[StoredObject, int, int]]) -> int:
        """Begin to copy ranges of objects into the cache; gives a number for ``take``."""
        number = next(self._numbers)
        self._asked[number] = [self._pool.submit(keep_range, *one, self.read) for one in wanted]
        return number

    def take(self, number: int) -> list[Any]:
        """The bytes of each range that was asked for, or None once it is kept."""
        return [future.result() for future in self._asked.pop(number)]

    def drop(self, number: int) -> None:
        """Do without what was asked for."""
        for future in self._asked.pop(number):
            future.cancel()

    def amounts(self) -> tuple[int, int, int]:
        """Requests that were made, tried again or not, bytes that were read, and written."""
        requests, read, written = self._amounts
        return requests, read, written

    def put(self, url: str, content: bytes | ChunkedObject, mode: PutMode) -> StoredObject | None:
        """Write an object; gives the version that is there then, None where ``mode`` forbids it.

        The answer to a write may be lost, and it is tried again: so the same bytes are no other.
        """
        if mode != "overwrite" and (isinstance(content, ChunkedObject) or not place_of(url).kind):
            # No conditions there are: it is looked at just before.
            if not matches(self.stat(url), mode):
                return None
            mode = "overwrite"
        try:
            written = self._again(url, lambda: _store(url).put(url, content, mode), first=True)
        except StoreError as error:
            if not isinstance(error.__cause__, ChangedError):
                raise
            found = self.stat(url)
            if found is None or isinstance(content, ChunkedObject) or found.size != len(content):
                return None
            return found if self.read(found, 0, found.size) == content else None
        self._count(written=written.size)
        return written

    def join(self, url: str, ranges: Sequence[Range], mode: PutMode) -> StoredObject | None:
        """``put`` what consists of ranges of objects and files."""
        size = sum(one.size for one in ranges)
        if size <= PART_BYTES:
            return self.put(url, b"".join(self._chunks(ranges)), mode)
        return self.put(url, ChunkedObject(size, lambda: self._chunks(ranges)), mode)

    def delete(self, url: str, version: StoredObject | None = None) -> bool:
        """Remove an object; False where it is not ``version``, if the store can tell."""
        try:
            self._again(url, lambda: _store(url).delete(url, version))
        except StoreError as error:
            if not isinstance(error.__cause__, ChangedError):
                raise
            return self.stat(url) is None  # it may be gone by the first of two tries
        return True

    def _chunks(self, ranges: Sequence[Range]) -> Iterator[bytes]:
        for one in ranges:
            if isinstance(one.source, LocalFile):
                yield from file_chunks(one.source.path, one.begin, one.end)
                continue
            fetch = functools.partial(self._read, one.source)
            ahead = PrefetchReader(fetch, self._pool, begin=one.begin, until=one.end, size=one.end)
            try:
                while chunk := ahead.next(0):
                    yield bytes(chunk)
            finally:
                ahead.close()

    def _read(self, found: StoredObject, begin: int, end: int) -> Any:
        if begin == end:
            return b""
        data = self._again(found.url, lambda: _store(found.url).read(found, begin, end))
        self._count(read=len(data))
        return data

    def _again(self, url: str, act: Callable[[], T], *, first: bool = False) -> T:
        """Try until it succeeds, or has failed for too long. Raises StoreError.

        ``first``: nothing need have been asked of this store before. If it does not answer and
        never has, a setting is probably wrong: that is an error at once.
        """
        begun = time.monotonic()
        longest = patience_seconds() * _TURNS
        pause = _FIRST_PAUSE
        while True:
            try:
                self._count(requests=1)
                done = act()
                self._answered.add(place_of(url)[:2])
                return done
            except (ChangedError, MissingError) as error:
                raise changed(url) from error
            except TransientError as error:
                at_once = first and error.silent and place_of(url)[:2] not in self._answered
                if at_once or time.monotonic() + pause - begun > longest:
                    times = "" if at_once else f" (tried for {time.monotonic() - begun:.0f} s)"
                    kind = StoreError if at_once else UnreachableError
                    raise kind(f"{shown(url)}: {error}{times}") from error
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _count(self, *, requests: int = 0, read: int = 0, written: int = 0) -> None:
        with self._lock:
            for at, count in enumerate((requests, read, written)):
                self._amounts[at] += count


def _content(url: str, most: int) -> bytes | None:
    """The first bytes of an object; where it is replaced meanwhile, that is no failure."""
    found = _store(url).stat(url)
    if found is None:
        return None
    try:
        return bytes(_store(url).read(found, 0, min(found.size, most))) if found.size else b""
    except (ChangedError, MissingError) as error:
        raise TransientError("it is replaced all the time") from error


@functools.cache
def _store_of(kind: str) -> listing.Store:
    return ObjectStores() if kind else FileSystems()


def _store(url: str) -> listing.Store:
    return _store_of(place_of(url).kind)

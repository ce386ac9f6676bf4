"""Objects read on, in ranges, and as files: with several requests under way."""

from __future__ import annotations

import io
import os
from collections import deque
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from tokpack.stores import access

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from tokpack.stores.urls import StoredObject

REQUEST_BYTES = 4 << 20
_MOST = 6  # requests under way: with their size, the bound of what is held in memory
_FIRST_BYTES = 1 << 20
# Where it is not known how much will be read: the smallest request, after how many of them one more
# is sent ahead, and how many may be under way.
_LEAST_BYTES = 64 << 10
_UNSAID_BEFORE, _MOST_UNSAID = 3, 3
_MOST_READERS = 4  # of one file: the columns of a table are read in turns


class Reader:
    """The bytes of an object from ``begin`` on, requested ahead up to ``until``.

    Beyond it only what is read is requested, and ahead where that goes on. Reads are conditional
    on the object's version. InputError where it is another one, or where the store does not give
    its bytes in the end.
    """

    def __init__(
        self,
        source: StoredObject,
        begin: int,
        until: int,
        objects: access.Objects = access.objects,
    ) -> None:
        self.at = begin
        self._source, self._objects = source, objects
        self._next, self._until, self._size = begin, min(until, source.size), source.size
        self._pending: deque[Future[Any]] = deque()
        self._taken = 0  # requests whose bytes are used
        self._unsaid = 0  # requests beyond ``until``
        self._chunk = memoryview(b"")
        self._process = os.getpid()

    def readinto(self, view: memoryview) -> int:
        """Fill some of ``view``; 0 at the end of the object."""
        chunk = self._take(len(view))
        view[: len(chunk)] = chunk
        return len(chunk)

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; none at the end of the object."""
        return bytes(self._take(size))

    def close(self) -> None:
        """Ask for nothing more."""
        self._size = self._until = 0
        for future in self._pending if self._process == os.getpid() else ():
            future.cancel()
        self._pending.clear()

    def _take(self, size: int) -> memoryview:
        if not self._chunk and size:
            self._chunk = memoryview(self._fetched(size))
        taken, self._chunk = self._chunk[:size], self._chunk[size:]
        self.at += len(taken)
        return taken

    def _fetched(self, wanted: int) -> Any:
        if self._process != os.getpid():  # forked since, without the threads that would answer
            self._process, self._next, self._taken = os.getpid(), self.at, 0
            self._pending.clear()
        self._ask()
        if not self._pending and self._next < self._size:
            self._unsaid += 1
            self._request(max(wanted, _LEAST_BYTES))
        if not self._pending:
            return b""
        data = self._pending.popleft().result()
        self._taken += 1
        self._ask()
        return data

    def _ask(self) -> None:
        # Few and small at first: a caller that only looks at the beginning should not fetch much.
        size = min(REQUEST_BYTES, _FIRST_BYTES << min(self._taken, 8))
        while self._next < self._until and len(self._pending) < min(_MOST, self._taken + 1):
            self._request(min(size, self._until - self._next))
        window = min(self._unsaid // _UNSAID_BEFORE, _MOST_UNSAID)
        while self._until <= self._next < self._size and len(self._pending) < window:
            self._unsaid += 1
            self._request(REQUEST_BYTES)

    def _request(self, size: int) -> None:
        end = min(self._next + size, self._size)
        read = access.threads.submit(self._objects.read, self._source, self._next, end)
        self._pending.append(read)
        self._next = end


class Ranges:
    """Bytes [begin, end) of objects, all requested at once; ``take`` waits for them.

    Who does not take them has to ``close``. Reads are conditional as those of a Reader.
    """

    def __init__(self, wanted: Sequence[tuple[StoredObject, int, int]]) -> None:
        self._wanted = wanted
        self._ask()

    def take(self) -> list[Any]:
        """The bytes of each range. InputError."""
        if self._process != os.getpid():  # forked since, without the threads
            self._ask()
        return [future.result() for future in self._futures]

    def close(self) -> None:
        """Ask for nothing more."""
        for future in self._futures if self._process == os.getpid() else ():
            future.cancel()

    def _ask(self) -> None:
        self._process = os.getpid()
        self._futures = [access.threads.submit(self._get, *one) for one in self._wanted]

    def _get(self, source: StoredObject, begin: int, end: int) -> Any:
        return access.objects.read(source, begin, end)


class KeptRanges(Ranges):
    """As Ranges, but copied into this machine's cache: ``take`` waits, and gives no bytes."""

    def _get(self, source: StoredObject, begin: int, end: int) -> None:
        from tokpack.stores.cache import keep_range

        keep_range(source, begin, end, access.objects.read)


class _File(io.RawIOBase):
    """An object as a file in which to seek; where it is read on, requests go ahead."""

    def __init__(self, source: StoredObject) -> None:
        self._source = source
        self._at = 0
        self._readers: list[Reader] = []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._source.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        filled = 0
        reader = self._reader()
        while filled < len(view) and (count := reader.readinto(view[filled:])):
            filled += count
        self._at += filled
        return filled

    def close(self) -> None:
        while self._readers:
            self._readers.pop().close()
        super().close()

    def _reader(self) -> Reader:
        """The reader that stands where the file does; the one used longest ago makes room."""
        for reader in self._readers:
            if reader.at == self._at:
                self._readers.remove(reader)
                break
        else:
            if len(self._readers) == _MOST_READERS:
                self._readers.pop(0).close()
            reader = Reader(self._source, min(self._at, self._source.size), 0)
        self._readers.append(reader)
        return reader


def open_object(source: StoredObject) -> BinaryIO:
    """Open an object as a file to read and to seek in. Reads raise InputError."""
    return cast("BinaryIO", io.BufferedReader(_File(source)))

"""How the rest of the program gets at objects."""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from tokpack.errors import InputError, StoreError
from tokpack.stores.helper import Helper
from tokpack.stores.trouble import changed
from tokpack.stores.urls import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.stores.listing import ListedObjects
    from tokpack.stores.objects import PutMode
    from tokpack.stores.ranges import Range
    from tokpack.stores.service import Service
    from tokpack.stores.urls import StoredObject

_MOST_READERS = 4  # of one file: the columns of a table are read in turns

_own = False
_service: Service | Helper | None = None
_uploaded = [0, 0]  # requests, and bytes that were written, without the service
_counting = threading.Lock()


def use_in_this_process() -> None:
    """Say that this process will not fork: it opens stores itself.

    One that was forked from a process with open stores still asks a helper.
    """
    global _own  # noqa: PLW0603
    _own = "obstore" not in sys.modules


def find(url: str) -> list[ListedObjects]:
    """What a URL names: an object, those below a folder, those that match a pattern. InputError."""
    return _stores().find(url)


def objects_in(folder: str) -> list[StoredObject]:
    """The objects of a folder, without those of folders in it. InputError."""
    return _stores().objects_in(folder)


def stat(url: str) -> StoredObject | None:
    """The object of a URL; None where there is none. InputError where that cannot be told."""
    return _stores().stat(url)


def stats(urls: Sequence[str]) -> list[StoredObject | None]:
    """``stat`` of each, many at a time. InputError."""
    return _stores().stats(urls)


def copies(objects: Sequence[StoredObject]) -> list[str]:
    """Files of this machine's cache with the bytes of objects, many at a time.

    They may be removed when others need their place: open them at once. InputError where the store
    does not give an object, OutputError where the cache cannot be written, UsageError where it is
    too small.
    """
    return _stores().copies(objects)


def named(url: str) -> StoredObject:
    """The object of a URL. InputError where there is none."""
    found = stat(url)
    if found is None:
        check_root(url)
        raise InputError(f"{shown(url)}: no such object")
    return found


def check_root(url: str) -> None:
    """StoreError where there is not even the bucket of a URL."""
    if why := _stores().missing(url):
        raise StoreError(why)


def heads(objects: Sequence[StoredObject], size: int) -> list[bytes]:
    """The first bytes of objects, ``size`` at most of each, many at a time. InputError."""
    return _stores().heads(objects, size)


def contents(urls: Sequence[str], most: int) -> list[bytes | None]:
    """Small objects as they are now, many at a time; None where none is. InputError."""
    return _stores().contents(urls, most)


def check_same(*found: StoredObject) -> None:
    """Raise StoreError where one of the objects is not the one that was found."""
    for one, now in zip(found, _stores().stats([one.url for one in found]), strict=True):
        if now is None or not now.same_as(one):
            raise changed(one.url)


def amounts() -> tuple[int, int, int]:
    """Requests made so far, bytes that were read, and written; not those of other processes."""
    requests, read, written = (0, 0, 0) if _service is None else _service.amounts()
    return requests + _uploaded[0], read, written + _uploaded[1]


def count_request(written: int = 0) -> None:
    """Add a request that this process made itself to the amounts, and the bytes that it wrote."""
    with _counting:
        _uploaded[0] += 1
        _uploaded[1] += written


def put(url: str, content: bytes, mode: PutMode = "overwrite") -> StoredObject | None:
    """Write an object; gives the version that is there then, None where ``mode`` forbids it."""
    return _stores().put(url, content, mode)


def join(url: str, ranges: Sequence[Range], mode: PutMode = "overwrite") -> StoredObject | None:
    """``put`` what consists of ranges of objects and files, through this machine."""
    return _stores().join(url, ranges, mode)


def delete(url: str, version: StoredObject | None = None) -> bool:
    """Remove an object; False where it is not ``version``, if the store can tell. InputError."""
    return _stores().delete(url, version)


class Reader:
    """The bytes of an object from ``begin`` on, several requests ahead up to ``until``.

    Reads are conditional on the object being the one that was found. InputError where it is not,
    or where the store does not give its bytes in the end.
    """

    def __init__(self, found: StoredObject, begin: int, until: int) -> None:
        self.at = begin
        self._service = _stores()
        self._number: int | None = self._service.open(found, begin, until)
        self._chunk = memoryview(b"")

    def readinto(self, view: memoryview) -> int:
        """Fill some of ``view``; 0 at the end of the object."""
        chunk = self._take(len(view))
        view[: len(chunk)] = chunk
        return len(chunk)

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; none at the end of the object."""
        return bytes(self._take(size))

    def close(self) -> None:
        if self._number is not None:
            self._service.close(self._number)
            self._number = None

    def _take(self, size: int) -> memoryview:
        assert self._number is not None
        if not self._chunk and size:
            self._chunk = memoryview(self._service.next(self._number, size))
        taken, self._chunk = self._chunk[:size], self._chunk[size:]
        self.at += len(taken)
        return taken


class Ranges:
    """Bytes [begin, end) of objects, all asked for at once; ``take`` waits for them.

    Who does not take them has to ``close``. Reads are conditional as those of a Reader.
    """

    _ask = "ask"

    def __init__(self, wanted: Sequence[tuple[StoredObject, int, int]]) -> None:
        self._wanted = wanted
        self._service = _stores()
        self._number: int | None = getattr(self._service, self._ask)(wanted)

    def take(self) -> list[bytes]:
        """The bytes of each range. InputError."""
        service = _stores()
        if service is not self._service:  # forked since, or with other settings
            self._service, self._number = service, getattr(service, self._ask)(self._wanted)
        number, self._number = self._number, None
        assert number is not None
        return service.take(number)

    def close(self) -> None:
        """Ask for nothing more."""
        if self._number is not None and self._service is _stores():
            self._service.drop(self._number)
        self._number = None


class KeptRanges(Ranges):
    """As Ranges, but copied into this machine's cache: ``take`` waits, and gives no bytes."""

    _ask = "keep"


class _File(io.RawIOBase):
    """An object as a file in which to seek; where it is read on, requests go ahead."""

    def __init__(self, found: StoredObject) -> None:
        self._found = found
        self._at = 0
        self._readers: list[Reader] = []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._found.size)[whence]
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
            reader = Reader(self._found, min(self._at, self._found.size), 0)
        self._readers.append(reader)
        return reader


def open_object(found: StoredObject) -> BinaryIO:
    """Open an object as a file to read and to seek in. Reads raise InputError."""
    return cast("BinaryIO", io.BufferedReader(_File(found)))


def _stores() -> Service:
    """The service of this process, or the process that does it for this one, with its methods."""
    global _service  # noqa: PLW0603
    if isinstance(_service, Helper) and (_service.is_closed or _service.settings != _settings()):
        _service = None  # it ends when nothing reads through it any more
    if _service is None:
        if _own:
            from tokpack.stores.service import Service

            _service = Service()
        else:
            _service = Helper(_settings())
    return cast("Service", _service)


def _settings() -> dict[str, str]:
    """What stores are configured by: variables that change call for another helper."""
    return dict(os.environ)


@atexit.register
def shut_down() -> None:
    """End the helper process of this one, if there is one."""
    if isinstance(_service, Helper):
        _service.shut_down()


def _after_fork() -> None:
    global _service, _own
    if isinstance(_service, Helper):
        _service.shut_down()
    _service, _own = None, False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

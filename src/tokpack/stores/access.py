"""Objects on stores, for the rest of the program: what may succeed the next time is tried again.

A process that may fork asks a helper; workers, which do not, open stores themselves.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tokpack import machine
from tokpack.errors import InputError, StoreError, UnreachableError
from tokpack.stores import listing
from tokpack.stores import ranges as limits
from tokpack.stores.helper import Helper
from tokpack.stores.ranges import LocalFile, Range, file_chunks
from tokpack.stores.settings import patience_seconds
from tokpack.stores.threads import Threads
from tokpack.stores.trouble import (
    NO_BUCKET,
    AbortedError,
    ChangedError,
    MissingError,
    TransientError,
    cannot_write,
    changed,
    not_found,
)
from tokpack.stores.urls import StoredObject, etag_of_parts, matches, place_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tokpack.stores.backends import Backend
    from tokpack.stores.urls import PutMode

T = TypeVar("T")

CHUNK_BYTES = 4 << 20
_AT_ONCE = 32
_COPIES, _PARTS = 8, 4
_TURNS = 4  # times the patience: how long something is tried again
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class Objects:
    """Reads, writes and lists objects, by the backend of each URL.

    All methods raise StoreError, those that write OutputError.
    """

    def __init__(self, backend: Callable[[str], Backend]) -> None:
        self._backend = backend
        self._answered: set[tuple[str, str]] = set()  # kinds and roots of URLs
        self._lock = threading.Lock()
        self._amounts = [0, 0, 0]

    def find(self, url: str) -> list[listing.ListedObjects]:
        """What a URL names: an object, those below a folder, those that match a pattern."""
        return self._again(url, lambda: listing.find(self._backend(url), url), first=True)

    def listed(self, begin: str) -> dict[str, StoredObject]:
        """The objects whose URLs begin so, in the folder that this names."""
        folder = begin.rpartition("/")[0]
        _, there = self._again(folder, lambda: self._backend(folder).level(folder), first=True)
        return {one.url: one for one in there if one.url.startswith(begin)}

    def stat(self, url: str) -> StoredObject | None:
        """The object of a URL; None where there is none."""
        return self._again(url, lambda: self._backend(url).stat(url), first=True)

    def stats(self, urls: Iterable[str]) -> list[StoredObject | None]:
        """``stat`` of each, many at a time."""
        return threads.map(self.stat, urls)

    def named(self, url: str) -> StoredObject:
        """The object of a URL. InputError where there is none."""
        current = self.stat(url)
        if current is None:
            self.check_root(url)
            raise InputError(f"{shown(url)}: no such object")
        return current

    def check_root(self, url: str) -> None:
        """StoreError where there is not even the bucket of a URL, or the endpoint is no store's."""
        try:
            next(iter(self._backend(url).below(url)), None)
        except StoreError as error:
            if NO_BUCKET in str(error):
                raise
        except MissingError:
            raise not_found(url) from None
        except (ChangedError, TransientError):
            pass

    def heads(self, objects: Iterable[StoredObject], size: int) -> list[bytes]:
        """The first bytes of objects, ``size`` at most of each, many at a time."""
        return threads.map(lambda one: self.read(one, 0, min(size, one.size)), objects)

    def contents(self, urls: Iterable[str], most: int) -> list[bytes | None]:
        """Small objects as they are now, ``most`` bytes at most of each; None where none is."""

        def content(url: str) -> bytes | None:
            backend = self._backend(url)
            now = backend.stat(url)
            if now is None:
                return None
            try:
                return bytes(backend.read(now, 0, min(now.size, most))) if now.size else b""
            except (ChangedError, MissingError) as error:
                raise TransientError("it is replaced all the time") from error

        return threads.map(lambda url: self._again(url, lambda: content(url), first=True), urls)

    def check_same(self, *objects: StoredObject) -> None:
        """StoreError where one of the objects has been replaced or removed."""
        for one, now in zip(objects, self.stats(one.url for one in objects), strict=True):
            if now is None or not now.has_same_content(one):
                raise changed(one.url)

    def read(self, source: StoredObject, begin: int, end: int) -> Any:
        """Bytes [begin, end) of an object. StoreError where it has been replaced, too."""
        if begin == end:
            return b""
        url = source.url
        data = self._again(url, lambda: self._backend(url).read(source, begin, end))
        self.count(read=len(data))
        return data

    def copies(self, objects: Sequence[StoredObject]) -> list[str]:
        """Files of this machine's cache with the bytes of objects, many at a time.

        They may be removed when others need their place: open them at once. OutputError where the
        cache cannot be written, UsageError where it is too small.
        """
        from tokpack.stores.cache import copy_of  # whose checksums are another package's

        def copy(one: StoredObject) -> str:
            return copy_of(one, lambda: self.chunks([Range(one, 0, one.size)]))

        return copiers.map(copy, objects)

    def chunks(self, ranges: Iterable[Range]) -> Iterator[bytes]:
        """The bytes of ranges of objects and files, one after the other, some MiB at a time."""
        from tokpack.stores.reading import Reader

        for source, begin, end in ranges:
            if isinstance(source, LocalFile):
                yield from file_chunks(source.path, begin, end)
                continue
            reader = Reader(source, begin, end, self)
            try:
                while reader.at < end:
                    yield reader.read(min(CHUNK_BYTES, end - reader.at))
            finally:
                reader.close()

    def create_repository(self, url: str) -> bool:
        """Make the repository of the hub where there is none; whether it did.

        OutputError where nothing can be written to it.
        """
        with cannot_write():
            is_new: bool = self._tried(
                url, lambda: self._backend(url).create_repository(url), first=True
            )
        return is_new

    def put(
        self, url: str, content: bytes | Sequence[Range], mode: PutMode = "overwrite"
    ) -> StoredObject | None:
        """Write an object; gives the version that is there then, None where ``mode`` forbids it.

        The answer to a write may be lost, and it is tried again: so the same bytes are no other.
        Where no answer was lost they are those of another run, and what is given is not ``ours``.
        """
        with cannot_write():
            return self._put(url, content, mode)

    def _put(
        self, url: str, content: bytes | Sequence[Range], mode: PutMode
    ) -> StoredObject | None:
        if not isinstance(content, bytes) and sum(one.size for one in content) <= limits.PART_BYTES:
            content = b"".join(self.chunks(content))
        if mode != "overwrite" and not (isinstance(content, bytes) and place_of(url).kind):
            # No conditions there are: it is looked at just before.
            if not matches(self.stat(url), mode):
                return None
            mode = "overwrite"
        write = _Write(partial(self._backend(url).put, url, content, mode))
        try:
            written: StoredObject = self._tried(url, write, first=True)
        except MissingError as error:
            if isinstance(mode, StoredObject):  # it was removed meanwhile
                return None
            raise not_found(url) from error
        except (ChangedError, StoreError) as error:
            unsure = isinstance(error, ChangedError | UnreachableError)
            now = self._of_content(url, content) if unsure else None
            if now:
                return replace(now, ours=write.may_be_done)
            if isinstance(error, StoreError):
                error.may_be_done = write.may_be_done
                raise
            return None
        self.count(written=written.size)
        return written

    def _of_content(self, url: str, content: object) -> StoredObject | None:
        """The object of a URL, if it has this content."""
        if not isinstance(content, bytes):
            return None
        now = self.stat(url)
        same = now and now.size == len(content) and self.read(now, 0, now.size) == content
        return now if same else None

    def delete(self, url: str, version: StoredObject | None = None) -> bool:
        """Remove an object, which may be gone; False where it is not ``version``."""
        with cannot_write():
            now = self.stat(url)
            if now is None:
                return True
            if version and not now.has_same_content(version):
                return False
            try:
                self._tried(url, lambda: self._backend(url).delete(url, version))
            except (ChangedError, MissingError):
                return self.stat(url) is None  # it may be gone by the first of two tries
            return True

    def begin(self, url: str) -> str:
        """Begin an upload in parts to S3; gives its name."""
        return self._again(url, lambda: self._backend(url).begin(url), first=True)

    def part(self, url: str, upload: str, number: int, content: bytes | Sequence[Range]) -> str:
        """Send a part, some bytes or ranges of files; its ETag. ChangedError: it was aborted."""
        size = len(content) if isinstance(content, bytes) else sum(one.size for one in content)
        etag = self._tried(url, lambda: self._backend(url).part(url, upload, number, content))
        self.count(written=size)
        return etag

    def copy_part(self, url: str, upload: str, number: int, one: Range) -> str:
        """Let the store copy a part from an object; its ETag.

        StoreError also where the object is another one by now; ChangedError as in ``part``.
        """
        assert isinstance(one.source, StoredObject)
        try:
            return self._tried(url, lambda: self._backend(url).copy_part(url, upload, number, one))
        except AbortedError:
            raise
        except (ChangedError, MissingError) as error:
            raise changed(one.source.url) from error

    def complete(
        self, url: str, upload: str, etags: Sequence[str], mode: PutMode
    ) -> tuple[str, bool] | None:
        """Make the object of an upload; its ETag, and whether it is ``ours``: see ``put``.

        None where ``mode`` forbids it.
        """
        complete = _Write(partial(self._backend(url).complete, url, upload, etags, mode))
        try:
            return self._tried(url, complete), True
        except (StoreError, ChangedError, MissingError) as error:
            # The answer to a try may be lost: what is there says whether it was done.
            with suppress(StoreError):
                written = self.stat(url)
                if written and written.etag.strip('"') == etag_of_parts(etags):
                    return written.etag, complete.may_be_done
            if isinstance(error, StoreError):
                raise
            return None  # another one is there by now, or none

    def abort(self, url: str, upload: str) -> None:
        """Give up an upload, which may be complete or gone."""
        with suppress(ChangedError, MissingError):
            self._tried(url, lambda: self._backend(url).abort(url, upload))

    def amounts(self) -> tuple[int, int, int]:
        """Requests of this process, tried again or not, bytes that were read, and written."""
        requests, read, written = self._amounts
        return requests, read, written

    def count(self, *, requests: int = 0, read: int = 0, written: int = 0) -> None:
        """Add to the amounts."""
        with self._lock:
            for at, count in enumerate((requests, read, written)):
                self._amounts[at] += count

    def _again(self, url: str, act: Callable[[], T], *, first: bool = False) -> T:
        """As ``_tried``; StoreError also for an object that is missing, or another one."""
        try:
            return self._tried(url, act, first=first)
        except MissingError as error:
            raise (not_found(url) if first else changed(url)) from error
        except ChangedError as error:
            raise changed(url) from error

    def _tried(self, url: str, act: Callable[[], T], *, first: bool = False) -> T:
        """Try until it succeeds. MissingError, ChangedError, StoreError where that takes too long.

        ``first``: nothing need have been asked of this store before. If it does not answer and
        never has, a setting is probably wrong: that is an error at once.
        """
        begun, longest = machine.clock.now(), patience_seconds() * _TURNS
        pause = _FIRST_PAUSE
        while True:
            try:
                self.count(requests=1)
                done = act()
                self._answered.add(place_of(url)[:2])
                return done
            except TransientError as error:
                at_once = first and error.silent and place_of(url)[:2] not in self._answered
                spent = machine.clock.now() - begun
                if at_once or pause + spent > longest:
                    times = "" if at_once else f" (tried for {spent:.0f} s)"
                    kind = StoreError if at_once else UnreachableError
                    raise kind(f"{shown(url)}: {error}{times}") from error
            machine.clock.sleep(pause * machine.clock.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)


class _Write:
    """A write that is tried; ``may_be_done``: a try of which no answer came may have succeeded."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act, self.may_be_done = act, False

    def __call__(self) -> Any:
        try:
            return self._act()
        except TransientError as error:
            self.may_be_done = self.may_be_done or not error.refused
            raise


threads = Threads(_AT_ONCE)
# These wait for requests, and so are not those who make them.
copiers, senders = Threads(_COPIES), Threads(_PARTS)
_never_forks = False
_helper: Helper | None = None
_beginning = threading.Lock()


def use_in_this_process() -> None:
    """Say that this process will not fork: it opens stores itself.

    One that was forked from a process with open stores still asks a helper.
    """
    global _never_forks  # noqa: PLW0603
    _never_forks = "obstore" not in sys.modules


def _backend(url: str) -> Backend:
    """What opens the store of a URL: this process, or another, which has the same settings."""
    global _helper  # noqa: PLW0603
    if _never_forks:
        from tokpack.stores.backends import backend_of

        return backend_of(url, objects.chunks)
    with _beginning:
        if _helper is None or _helper.environment != _settings():
            _helper = Helper(_settings())
            objects._answered.clear()  # no store was asked with these settings
        return _helper


def _settings() -> dict[str, str]:
    """What stores are configured by: variables that change call for another helper."""
    return dict(os.environ)


@atexit.register
def shut_down() -> None:
    """End the helper process of this one, if there is one."""
    global _helper  # noqa: PLW0603
    if _helper:
        _helper.shut_down()
    _helper = None


def _after_fork() -> None:
    global _never_forks, _beginning, threads, copiers, senders
    shut_down()
    _never_forks, _beginning, objects._lock = False, threading.Lock(), threading.Lock()
    threads, copiers, senders = Threads(_AT_ONCE), Threads(_COPIES), Threads(_PARTS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

objects = Objects(_backend)

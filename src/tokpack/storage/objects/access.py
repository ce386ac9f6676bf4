"""Objects on stores, for the rest of the program; requests that may succeed later are retried.

A process that may fork sends its requests to a helper process, see ``helper``. Workers do not fork,
and open stores themselves.
"""

from __future__ import annotations

import atexit
import fnmatch
import io
import os
import re
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast

from tokpack import machine
from tokpack.errors import InputError, StoreError, UnreachableError
from tokpack.storage.objects import urls as limits
from tokpack.storage.objects.helper import Helper, Threads
from tokpack.storage.objects.trouble import (
    NO_BUCKET,
    AbortedError,
    ChangedError,
    MissingError,
    TransientError,
    cannot_write,
    changed,
    not_found,
)
from tokpack.storage.objects.urls import (
    LocalFile,
    Range,
    StoredObject,
    etag_of_parts,
    file_chunks,
    matches,
    patience_seconds,
    place_of,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from tokpack.storage.objects.backends import Backend
    from tokpack.storage.objects.urls import PutMode


_MAGIC = re.compile(r"[*?[]")
_DEEP = "**"


class ListedObjects(NamedTuple):
    """Objects that a URL names; ``folder`` is the folder that was named, or "" for an object."""

    folder: str
    objects: list[StoredObject]


def find(store: Backend, url: str) -> list[ListedObjects]:
    """The objects that a URL names, in order: one, those below a folder, or those of a pattern.

    ``**`` stands for any number of folders. Wildcards do not match a dot at the beginning of a
    name, and a folder stands for its objects without such names. A web server cannot list objects.
    StoreError if there are none.
    """
    lists = place_of(url).kind != "http"
    if lists and _MAGIC.search(url):
        names = url.split("/")
        first = next(i for i, name in enumerate(names) if _MAGIC.search(name))
        matches = list(_walk(store, "/".join(names[:first]), names[first:]))
        if not matches:
            raise StoreError(f"{shown(url)}: no object matches this pattern")
        matches.sort(key=lambda one: _order(one.folder or one.objects[0].url))
        # Consecutive objects are grouped, so that the caller can look at many at once.
        return [
            ListedObjects(folder, [one for listed in some for one in listed.objects])
            for folder, some in groupby(matches, key=lambda listed: listed.folder)
        ]
    one = None if url.endswith("/") else store.stat(url)
    if one is not None:
        return [ListedObjects("", [one])]
    objects = _visible_below(store, url.rstrip("/")) if lists else []
    if not objects:
        raise StoreError(f"{shown(url)}: no such object{' or folder' if lists else ''}")
    return [ListedObjects(url.rstrip("/"), objects)]


def _walk(store: Backend, base: str, rest: Sequence[str]) -> Iterator[ListedObjects]:
    """The objects that match the pattern ``rest`` in the folder ``base``."""
    name, more = rest[0], rest[1:]
    if name == _DEEP:
        for one in store.below(base):
            if _fits(_names(base, one), rest):
                yield ListedObjects("", [one])
        return
    if not _MAGIC.search(name) and more:
        yield from _walk(store, f"{base}/{name}", more)
        return
    folders, objects = store.level(base)
    for folder in folders:
        if _name_fits(folder.rpartition("/")[2], name):
            if more:
                yield from _walk(store, folder, more)
            elif below := _visible_below(store, folder):
                yield ListedObjects(folder, below)
    if not more:
        for one in objects:
            if _name_fits(one.url.rpartition("/")[2], name):
                yield ListedObjects("", [one])


def _visible_below(store: Backend, folder: str) -> list[StoredObject]:
    return in_order(one for one in store.below(folder) if _fits(_names(folder, one), [_DEEP]))


def _names(base: str, one: StoredObject) -> list[str]:
    return one.url[len(base) + 1 :].split("/")


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the names of a path match the components of a pattern."""
    if not pattern:
        return not names
    if pattern[0] == _DEEP:
        if len(pattern) == 1:
            return all(map(_is_visible, names))
        return _fits(names, pattern[1:]) or (
            bool(names) and _is_visible(names[0]) and _fits(names[1:], pattern)
        )
    return bool(names) and _name_fits(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


def _name_fits(name: str, pattern: str) -> bool:
    if name.startswith(".") and not pattern.startswith("."):
        return False
    return fnmatch.fnmatchcase(name, pattern)


def _is_visible(name: str) -> bool:
    return bool(name) and not name.startswith(".") and not name.endswith(".unfinished")


def in_order(objects: Iterable[StoredObject]) -> list[StoredObject]:
    """The objects, sorted by the names of their folders, and then by their own."""
    return sorted(objects, key=lambda one: _order(one.url))


def _order(url: str) -> list[bytes]:
    return url.encode().split(b"/")


T = TypeVar("T")

CHUNK_BYTES = 4 << 20
_AT_ONCE = 32
_COPIES, _PARTS = 8, 4
_TURNS = 4  # retry a request for this many times the patience
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class Objects:
    """Reads, writes and lists objects through the backend of their URL.

    All methods raise StoreError; those that write raise OutputError.
    """

    def __init__(self, backend: Callable[[str], Backend]) -> None:
        self._backend = backend
        self._answered: set[tuple[str, str]] = set()  # (kind, root) of stores that have answered
        self._lock = threading.Lock()
        self._amounts = [0, 0, 0]

    def find(self, url: str) -> list[ListedObjects]:
        """The objects that a URL names: one, those below a folder, or those of a pattern."""
        return self._again(url, lambda: find(self._backend(url), url), first=True)

    def listed(self, *begins: str) -> dict[str, StoredObject]:
        """The objects whose URLs begin with one of ``begins``, not those in folders below, by URL.

        The listings of several are asked for at a time.
        """

        def level(begin: str) -> list[StoredObject]:
            folder, _, name = begin.rpartition("/")
            act = partial(self._backend(folder).level, folder, name)
            return self._again(folder, act, first=True)[1]

        def asked(begin: str) -> str:  # others than S3 list whole folders
            return begin if place_of(begin).kind == "s3" else begin.rpartition("/")[0] + "/"

        found = threads.map(level, dict.fromkeys(map(asked, begins)))
        return {one.url: one for some in found for one in some if one.url.startswith(begins)}

    def stat(self, url: str) -> StoredObject | None:
        """The object of a URL, or None if there is none."""
        return self._again(url, lambda: self._backend(url).stat(url), first=True)

    def stats(self, urls: Iterable[str]) -> list[StoredObject | None]:
        """The objects of URLs, many at a time, with None for each that does not exist."""
        return threads.map(self.stat, urls)

    def named(self, url: str) -> StoredObject:
        """The object of a URL. InputError if there is none."""
        current = self.stat(url)
        if current is None:
            self.check_root(url)
            raise InputError(f"{shown(url)}: no such object")
        return current

    def check_root(self, url: str) -> None:
        """Raise StoreError if the bucket of a URL does not exist, or if no store is there."""
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
        """The first bytes of objects, at most ``size`` of each, many at a time."""
        return threads.map(lambda one: self.read(one, 0, min(size, one.size)), objects)

    def contents(self, urls: Iterable[str], most: int) -> list[bytes | None]:
        """The current contents of small objects, at most ``most`` bytes; None for a missing one."""

        # If an object is replaced between the two requests, try both again.
        def content(url: str) -> bytes | None:
            backend = self._backend(url)
            now = backend.stat(url)
            if now is None:
                return None
            try:
                return bytes(backend.read(now, 0, min(now.size, most))) if now.size else b""
            except (ChangedError, MissingError) as error:
                raise TransientError("it is being replaced repeatedly") from error

        return threads.map(lambda url: self._again(url, lambda: content(url), first=True), urls)

    def check_same(self, *objects: StoredObject) -> None:
        """Raise StoreError if one of the objects has been replaced or removed."""
        for one, now in zip(objects, self.stats(one.url for one in objects), strict=True):
            if now is None or not now.has_same_content(one):
                raise changed(one.url)

    def read(self, source: StoredObject, begin: int, end: int) -> Any:
        """Bytes [begin, end) of an object. StoreError also if it has been replaced."""
        if begin == end:
            return b""
        url = source.url
        data = self._again(url, lambda: self._backend(url).read(source, begin, end))
        self.count(read=len(data))
        return data

    def copies(self, objects: Sequence[StoredObject]) -> list[str]:
        """The paths of local copies of objects in the cache; many are fetched at a time.

        They may be removed to make space for others: open them at once. OutputError if the cache
        cannot be written, UsageError if it is too small.
        """
        from tokpack.storage.objects.cache import copy_of  # loads another package, for checksums

        def copy(one: StoredObject) -> str:
            return copy_of(one, lambda: self.chunks([Range(one, 0, one.size)]))

        return copiers.map(copy, objects)

    def chunks(self, ranges: Iterable[Range]) -> Iterator[bytes]:
        """The bytes of ranges of objects and files, in order, a few MiB at a time."""

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

    @cannot_write()
    def create_repository(self, url: str) -> bool:
        """Make the repository on the hub if it does not exist. Returns whether it made it.

        OutputError if nothing can be written to it.
        """
        return self._tried(url, lambda: self._backend(url).create_repository(url), first=True)

    @cannot_write()
    def put(
        self, url: str, content: bytes | Sequence[Range], mode: PutMode = "overwrite"
    ) -> StoredObject | None:
        """Write an object and return its version; None if ``mode`` forbids it.

        If the answer to a write is lost, the retry finds the object there already. So an existing
        object with the same bytes counts as written. If no answer was lost, another run wrote it,
        and the returned version is not ``ours``.
        """
        if not isinstance(content, bytes) and sum(one.size for one in content) <= limits.PART_BYTES:
            content = b"".join(self.chunks(content))
        if mode != "overwrite" and not (isinstance(content, bytes) and place_of(url).kind):
            # fsspec has no conditional writes, and obstore none for uploads in parts. So look at
            # the object just before, which leaves a short race with other writers.
            if not matches(self.stat(url), mode):
                return None
            mode = "overwrite"
        write = _Write(partial(self._backend(url).put, url, content, mode))
        try:
            written: StoredObject = self._tried(url, write, first=True)
        except MissingError as error:
            if isinstance(mode, StoredObject):  # the version to replace is gone
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
        """The object of a URL if it has this content, else None."""
        if not isinstance(content, bytes):
            return None
        now = self.stat(url)
        same = now and now.size == len(content) and self.read(now, 0, now.size) == content
        return now if same else None

    @cannot_write()
    def delete(self, url: str, version: StoredObject | None = None) -> bool:
        """Remove an object, if it exists. Returns False if it is not ``version``."""
        now = self.stat(url)
        if now is None:
            return True
        if version and not now.has_same_content(version):
            return False
        try:
            self._tried(url, lambda: self._backend(url).delete(url, version))
        except (ChangedError, MissingError):
            return self.stat(url) is None  # an earlier try may have removed it
        return True

    def begin(self, url: str) -> str:
        """The id of a new upload in parts to S3."""
        return self._again(url, lambda: self._backend(url).begin(url), first=True)

    def part(self, url: str, upload: str, number: int, content: bytes | Sequence[Range]) -> str:
        """Send a part, which is bytes or ranges of files. Returns its ETag.

        ChangedError if the upload was aborted.
        """
        size = len(content) if isinstance(content, bytes) else sum(one.size for one in content)
        etag = self._tried(url, lambda: self._backend(url).part(url, upload, number, content))
        self.count(written=size)
        return etag

    def copy_part(self, url: str, upload: str, number: int, one: Range) -> str:
        """Let the store copy a part from an object. Returns its ETag.

        StoreError also if that object has been replaced; ChangedError if the upload was aborted.
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
        """Make the object of an upload. Returns its ETag and whether it is ``ours``, see ``put``.

        None if ``mode`` forbids it.
        """
        complete = _Write(partial(self._backend(url).complete, url, upload, etags, mode))
        try:
            return self._tried(url, complete), True
        except (StoreError, ChangedError, MissingError) as error:
            # The answer to an earlier try may have been lost, and a completed upload no longer
            # exists. The ETag of such an object follows from its parts, so it shows whether the
            # current object is from this upload.
            with suppress(StoreError):
                written = self.stat(url)
                if written and written.etag.strip('"') == etag_of_parts(etags):
                    return written.etag, complete.may_be_done
            if isinstance(error, StoreError):
                raise
            return None  # there is another object by now, or the one to replace is gone

    def abort(self, url: str, upload: str) -> None:
        """Abort an upload, if it still exists."""
        with suppress(ChangedError, MissingError):
            self._tried(url, lambda: self._backend(url).abort(url, upload))

    def amounts(self) -> tuple[int, int, int]:
        """The requests of this process, with retries, and the bytes read and written."""
        requests, read, written = self._amounts
        return requests, read, written

    def count(self, *, requests: int = 0, read: int = 0, written: int = 0) -> None:
        """Add to the amounts."""
        with self._lock:
            for at, count in enumerate((requests, read, written)):
                self._amounts[at] += count

    def _again(self, url: str, act: Callable[[], T], *, first: bool = False) -> T:
        """As ``_tried``, but StoreError for an object that is missing or was replaced."""
        try:
            return self._tried(url, act, first=first)
        except MissingError as error:
            raise (not_found(url) if first else changed(url)) from error
        except ChangedError as error:
            raise changed(url) from error

    def _tried(self, url: str, act: Callable[[], T], *, first: bool = False) -> T:
        """The result of ``act``, retried while it fails with TransientError.

        StoreError if that takes too long; MissingError and ChangedError are passed on. With
        ``first``, if the store has never answered and does not answer now, a setting is probably
        wrong, and the error is raised at once.
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
    """A write in progress. ``may_be_done``: a try without an answer may have succeeded."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act, self.may_be_done = act, False

    def __call__(self) -> Any:
        try:
            return self._act()
        except TransientError as error:
            self.may_be_done = self.may_be_done or not error.refused
            raise


threads = Threads(_AT_ONCE)
# These threads wait for requests of ``threads``. In one pool, all threads could be waiting, with
# none left to make a request.
copiers, senders = Threads(_COPIES), Threads(_PARTS)
_never_forks = False
_helper: Helper | None = None
_beginning = threading.Lock()


def use_in_this_process() -> None:
    """Declare that this process will not fork, so that it opens stores itself.

    It still uses a helper if it was forked from a process that had loaded obstore.
    """
    global _never_forks  # noqa: PLW0603
    _never_forks = "obstore" not in sys.modules


def _backend(url: str) -> Backend:
    """The backend for a URL: in this process, or a helper with the current environment."""
    global _helper  # noqa: PLW0603
    if _never_forks:
        from tokpack.storage.objects.backends import backend_of

        return backend_of(url, objects.chunks)
    with _beginning:
        if _helper is None or _helper.environment != _settings():
            _helper = Helper(_settings())
            objects._answered.clear()  # no answers with these settings yet
        return _helper


def _settings() -> dict[str, str]:
    """The settings of stores: the environment. If it changes, another helper is started."""
    return dict(os.environ)


@atexit.register
def shut_down() -> None:
    """End the helper process, if there is one."""
    global _helper  # noqa: PLW0603
    if _helper:
        _helper.shut_down()
    _helper = None


def _after_fork() -> None:
    # A fork has copies of locks that these threads may hold, but not the threads. So start afresh.
    global _never_forks, _beginning, threads, copiers, senders
    shut_down()
    _never_forks, _beginning, objects._lock = False, threading.Lock(), threading.Lock()
    threads, copiers, senders = Threads(_AT_ONCE), Threads(_COPIES), Threads(_PARTS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

objects = Objects(_backend)


REQUEST_BYTES = 4 << 20
_MOST = 6  # requests at a time; times REQUEST_BYTES is a reader's memory limit
_FIRST_BYTES = 1 << 20
# If it is unknown how much will be read: the smallest request; after how many requests one more is
# sent ahead; and the most requests at a time.
_LEAST_BYTES = 64 << 10
_UNSAID_BEFORE, _MOST_UNSAID = 3, 3
_MOST_READERS = 4  # per file: the columns of a table are read alternately


class Reader:
    """Reads an object from ``begin`` on, and requests bytes before ``until`` ahead.

    Beyond ``until``, bytes are requested when they are read, and ahead only if reading continues.
    Reads are conditional on the object's version, because a mix of two versions would be worse than
    an error. InputError if the object has been replaced, or if the store does not answer.
    """

    def __init__(
        self,
        source: StoredObject,
        begin: int,
        until: int,
        objects: Objects = objects,
    ) -> None:
        self.at = begin
        self._source, self._objects = source, objects
        self._next, self._until, self._size = begin, min(until, source.size), source.size
        self._pending: deque[Future[Any]] = deque()
        self._taken = 0  # requests already consumed
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
        """Cancel the requests; nothing more is read."""
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
        # A fork has no threads, so requests in progress are lost: restart at the first unread byte.
        if self._process != os.getpid():
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
        # Few and small requests at first: many callers read only the beginning.
        size = min(REQUEST_BYTES, _FIRST_BYTES << min(self._taken, 8))
        while self._next < self._until and len(self._pending) < min(_MOST, self._taken + 1):
            self._request(min(size, self._until - self._next))
        window = min(self._unsaid // _UNSAID_BEFORE, _MOST_UNSAID)
        while self._until <= self._next < self._size and len(self._pending) < window:
            self._unsaid += 1
            self._request(REQUEST_BYTES)

    def _request(self, size: int) -> None:
        end = min(self._next + size, self._size)
        read = threads.submit(self._objects.read, self._source, self._next, end)
        self._pending.append(read)
        self._next = end


class Ranges:
    """Bytes [begin, end) of objects, all requested at once; ``take`` waits for them.

    A caller that does not take them must ``close``. Reads are conditional, as those of a Reader.
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
        """Cancel the requests."""
        for future in self._futures if self._process == os.getpid() else ():
            future.cancel()

    def _ask(self) -> None:
        self._process = os.getpid()
        self._futures = [threads.submit(self._get, *one) for one in self._wanted]

    def _get(self, source: StoredObject, begin: int, end: int) -> Any:
        return objects.read(source, begin, end)


class KeptRanges(Ranges):
    """As Ranges, but bytes are copied into the local cache, and ``take`` waits for that."""

    def _get(self, source: StoredObject, begin: int, end: int) -> None:
        from tokpack.storage.objects.cache import keep_range

        keep_range(source, begin, end, objects.read)


class _File(io.RawIOBase):
    """An object as a file to seek in, which requests bytes ahead where it is read in order."""

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
        """The reader at the file's position, or a new one in place of the least recently used."""
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
    """Open an object as a file to read and seek in. Its reads raise InputError."""
    return cast("BinaryIO", io.BufferedReader(_File(source)))

"""Files, or copies of objects, mapped read-only."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import InputError
from tokpack.machine import usable_cores
from tokpack.storage import Ranges, Reader, StoredObject, check_root, copies, is_url, located, named
from tokpack.storage.disk import Identity as FileIdentity
from tokpack.storage.disk import cannot_read, no_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future
    from typing import BinaryIO

    from tokpack.storage import Identity


_ADVICE = (
    "a dataset is PREFIX.bin and PREFIX.idx, and is opened by its PREFIX; an unfinished run "
    "leaves none: run it again"
)


_TRIES = 100  # to open a copy, which other processes may remove before it is open


def map_file(
    path: str, stored: StoredObject | None = None, advice: str = _ADVICE
) -> tuple[bytes | mmap.mmap, Identity]:
    """Map a whole file read-only, whatever happens to its name later; for a URL a copy. InputError.

    ``stored`` is the object of the URL, if it was looked up before. ``advice`` ends the error for a
    missing file.
    """
    try:
        if is_url(path):
            stored = stored or located(path)
        if stored is None and not stat.S_ISREG(
            os.stat(path).st_mode
        ):  # opening a pipe would block for ever
            raise InputError(f"{path}: not a regular file")
        with _opened(path, stored) as file:
            status = os.fstat(file.fileno())
            size, identity = status.st_size, stored or FileIdentity.of(status)
            if size == 0:  # an empty file cannot be mapped
                return b"", identity
            # Reading a map of a truncated file raises a signal, which the core turns into an error.
            # A library may have replaced the core's handler since the last file.
            _core.watch_bus_errors()
            if sys.version_info >= (3, 13):  # without a second open descriptor
                buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, trackfd=False)
            else:
                buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            return buffer, identity
    except FileNotFoundError:
        if is_url(path):
            check_root(path)
        text = f"{path}: no such file; {advice}"
        if is_url(path) or not path.endswith(".idx"):
            raise InputError(text) from None
        raise no_dataset(path.removesuffix(".idx"), text) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise InputError(f"{path!r}: no file has such a name: {error}") from None


def _opened(path: str, stored: StoredObject | None) -> BinaryIO:
    for _ in range(_TRIES):
        name = path if stored is None else copies([stored])[0]
        with suppress(FileNotFoundError):  # removed meanwhile to make space
            return open(name, "rb", buffering=0)
        if stored is None:
            break
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


Tokens = npt.NDArray[Any]

LEAST_BYTES = 16 << 10  # of a request; smaller ones take as long
MOST_BYTES = 4 << 20  # of one request, also for several ranges
GAP_BYTES = 32 << 10  # ranges with smaller gaps are read with one request


class LazyTokens:
    """All tokens of a shard that is not mapped: each slice is a new array, read-only."""

    dtype: np.dtype[Any]

    def __len__(self) -> int:
        """Number of tokens."""
        return self.nbytes // self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all tokens."""
        raise NotImplementedError

    def __getitem__(self, which: slice) -> Tokens:
        raise NotImplementedError


class StoredTokens(LazyTokens):
    """All tokens of the object ``stored``, as ``dtype``: each slice is a new array, read-only.

    Consecutive slices make it read ahead more and more. InputError if the object has been replaced,
    or if the store does not answer.
    """

    def __init__(self, stored: StoredObject, dtype: np.dtype[Any]) -> None:
        self.stored = stored
        self.dtype = dtype
        self._window: tuple[int, bytes] = 0, b""  # the last bytes that were read, and their offset

    @property
    def nbytes(self) -> int:
        """The size of the .bin."""
        return self.stored.size

    def __getitem__(self, which: slice) -> Tokens:
        begin, end, step = which.indices(len(self))
        width = self.dtype.itemsize
        if end <= begin:
            return np.frombuffer(b"", self.dtype)
        begin, end = begin * width, end * width
        at, data = self._window
        if not at <= begin <= end <= at + len(data):
            # If this continues the last window, read twice as much.
            ahead = 2 * len(data) if at < begin <= at + len(data) else LEAST_BYTES
            size = max(end - begin, min(ahead, MOST_BYTES))
            data = read(self.stored, begin, min(begin + size, self.nbytes))
            at, self._window = begin, (begin, data)
        return np.frombuffer(data[begin - at : end - at], self.dtype)[::step]


def as_integers(values: Tokens) -> Tokens:
    """The same bytes as integers, because the core copies only these."""
    return values if values.dtype.kind in "iu" else values.view(f"<i{values.itemsize}")


def read(stored: StoredObject, begin: int, end: int) -> bytes:
    """Bytes [begin, end) of an object, in as many requests as needed."""
    pieces = range(begin, end, MOST_BYTES)
    return b"".join(Ranges([(stored, at, min(at + MOST_BYTES, end)) for at in pieces]).take())


class Span(NamedTuple):
    """``length`` tokens of a .bin from token ``begin`` on, for row ``row``."""

    row: int
    tokens: StoredTokens
    begin: int
    length: int


class Fetch:
    """Requests for spans, sent at once; nearby spans share a request."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(spans, key=lambda span: (span.tokens.stored.url, span.begin))
        requests: list[tuple[Any, int, int]] = []
        self._of: list[int] = []  # the request of each span
        for span in self._spans:
            width, stored = span.tokens.dtype.itemsize, span.tokens.stored
            begin, end = span.begin * width, (span.begin + span.length) * width
            before = requests[-1] if requests else (None, 0, 0)
            near = begin - before[2] <= GAP_BYTES and end - before[1] <= MOST_BYTES
            if before[0] == stored and near:
                requests[-1] = (stored, before[1], max(end, before[2]))
            else:
                requests.append((stored, begin, end))
            self._of.append(len(requests) - 1)
        self._requests = requests
        self._ranges = Ranges(requests)

    def take(self) -> Iterator[tuple[int, Tokens]]:
        """Each row with its tokens, in any order. InputError."""
        data = self._ranges.take()
        for span, number in zip(self._spans, self._of, strict=True):
            dtype = span.tokens.dtype
            at = span.begin * dtype.itemsize - self._requests[number][1]
            yield span.row, np.frombuffer(data[number], dtype, span.length, at)

    def close(self) -> None:
        """Cancel the requests that are not answered."""
        self._ranges.close()


# ``scan`` reads a whole .bin once, on all cores. Files are read, not mapped, so that truncating one
# meanwhile causes an error and not a signal. Objects on a store are read in order, with requests
# ahead.

Result = TypeVar("Result")
ByteBlock = npt.NDArray[np.uint8]

CHUNK_BYTES = 1 << 21  # fits into a core's cache; a multiple of every item size
_MOST_THREADS = 32


def scan(
    path: str,
    size: int,
    look: Callable[[int, ByteBlock], Result],
    *,
    threads: int = 0,
    chunk: int = 0,
    cuts: npt.NDArray[np.int64] | None = None,
    tokens: LazyTokens | None = None,
) -> Generator[tuple[int, ByteBlock, Result], None, None]:
    """The results of ``look(begin, block)`` for the chunks of the first ``size`` bytes of ``path``.

    ``look`` runs in ``threads`` threads (0: as many as the cores can use). Results come in file
    order, each with the offset and bytes of its chunk, which stay valid until the next result is
    taken. A chunk has ``chunk`` bytes, by default CHUNK_BYTES; with ``cuts``, from 0 up to
    ``size``, chunks are between them. Memory is limited to two chunks per thread. ``tokens`` of a
    view are read instead of a file. InputError if the file cannot be read or is shorter.
    """
    chunk = chunk or CHUNK_BYTES
    # Two more threads than cores: some wait for the disk.
    threads = threads or min(_MOST_THREADS, usable_cores() + 2)
    if tokens is not None:
        source: _Blocks = _GatheredTokens(tokens)
    else:
        source = _ObjectBlocks(path, size) if is_url(path) else _FileBlocks(path)
    free = [np.empty(min(chunk, size), np.uint8) for _ in range(2 * threads)]
    bounds = [*range(0, size, chunk), size] if cuts is None else cuts.tolist()
    left = list(pairwise(bounds))[::-1]
    waiting: deque[Future[tuple[int, ByteBlock, Result]]] = deque()

    def work(block: ByteBlock, begin: int) -> tuple[int, ByteBlock, Result]:
        source.fill(block, begin)
        return begin, block, look(begin, block)

    pool = ThreadPoolExecutor(threads)
    try:
        while left or waiting:
            while free and left:
                begin, end = left.pop()
                block = free.pop()
                if len(block) < end - begin:
                    block = np.empty(end - begin, np.uint8)
                block = block[: end - begin]
                source.take(block)
                waiting.append(pool.submit(work, block, begin))
            at, block, result = waiting.popleft().result()
            yield at, block, result
            whole: ByteBlock = block if block.base is None else block.base
            # Do not keep the memory of one long chunk for the rest of the file.
            free.append(whole if len(whole) <= chunk else np.empty(min(chunk, size), np.uint8))
    finally:
        pool.shutdown(cancel_futures=True)
        source.close()


class _Blocks:
    """The input of ``scan``: a block is taken in order, then filled in any thread."""

    def take(self, block: ByteBlock) -> None:
        """Called for each block in order, before it is filled."""

    def fill(self, block: ByteBlock, begin: int) -> None:
        """Read a block from byte ``begin`` on; called in any thread."""

    def close(self) -> None:
        """Called at the end."""


class _GatheredTokens(_Blocks):
    """Tokens of a view, gathered by the threads in any order."""

    def __init__(self, tokens: LazyTokens) -> None:
        self._tokens = tokens

    def fill(self, block: ByteBlock, begin: int) -> None:
        width = self._tokens.dtype.itemsize
        block[:] = self._tokens[begin // width : (begin + len(block)) // width].view(np.uint8)


class _FileBlocks(_Blocks):
    """A file whose blocks are read by the threads in any order."""

    def __init__(self, path: str) -> None:
        self._path = path
        with cannot_read(path):
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def fill(self, block: ByteBlock, begin: int) -> None:
        view = memoryview(block.data)
        while view:
            try:
                count = os.preadv(self._file, [view], begin)
            except OSError as error:
                raise InputError(
                    f"{self._path}: cannot be read at byte {begin}: {error.strerror or error}"
                ) from error
            if not count:
                raise InputError(
                    f"{self._path}: ends at byte {begin}: it was cut off while it was read"
                )
            view = view[count:]
            begin += count

    def close(self) -> None:
        os.close(self._file)


class _ObjectBlocks(_Blocks):
    """An object whose blocks are read in order, with requests ahead."""

    def __init__(self, path: str, size: int) -> None:
        self._reader = Reader(named(path), 0, size)
        self._path = path

    def take(self, block: ByteBlock) -> None:
        view = memoryview(block.data)
        while view:
            count = self._reader.readinto(view)
            if not count:
                raise InputError(f"{self._path}: ends early: it was cut off while it was read")
            view = view[count:]

    def close(self) -> None:
        self._reader.close()

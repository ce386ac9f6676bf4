"""Read a whole .bin once, at the speed of the machine: chunks in threads, results in file order.

Files are read, not mapped: one that is cut off meanwhile is an error and not a signal. An object on
a store is read from its beginning to its end, with requests ahead.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from tokpack.errors import InputError
from tokpack.files.durable import cannot_read
from tokpack.machine import usable_cores
from tokpack.stores import Reader, is_url, named

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

    from tokpack.indexed.stored import LazyTokens

Result = TypeVar("Result")
ByteBlock = npt.NDArray[np.uint8]

CHUNK_BYTES = 1 << 21  # a multiple of every item size; stays in the cache of a core
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
    """Call ``look(begin, block)`` for the chunks of the first ``size`` bytes of ``path``.

    ``look`` runs in ``threads`` threads (0: as many as the cores can use); what it returns comes in
    the order of the file, with the chunk's first byte and its bytes, which stay until the next one
    is asked for. A chunk has ``chunk`` bytes, CHUNK_BYTES by default; with ``cuts``, from 0 up to
    ``size``, one lies between each two of them. Memory is bounded by two chunks a thread.
    ``tokens`` are taken in place of a file: those of a view. InputError where the file cannot be
    read or is shorter.
    """
    chunk = chunk or CHUNK_BYTES
    # Two more than there are cores: some wait for the disk.
    threads = threads or min(_MOST_THREADS, usable_cores() + 2)
    source = _source(path, size) if tokens is None else _GatheredTokens(tokens)
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
                block = _at_least(free.pop(), end - begin)[: end - begin]
                source.take(block)
                waiting.append(pool.submit(work, block, begin))
            at, block, result = waiting.popleft().result()
            yield at, block, result
            whole: ByteBlock = block if block.base is None else block.base
            # One long chunk must not cost its memory for the rest.
            free.append(whole if len(whole) <= chunk else np.empty(min(chunk, size), np.uint8))
    finally:
        pool.shutdown(cancel_futures=True)
        source.close()


def _at_least(block: ByteBlock, size: int) -> ByteBlock:
    return block if len(block) >= size else np.empty(size, np.uint8)


def _source(path: str, size: int) -> _FileBlocks | _ObjectBlocks:
    return _ObjectBlocks(path, size) if is_url(path) else _FileBlocks(path)


class _GatheredTokens:
    """Tokens that are gathered by the threads, in any order."""

    def __init__(self, tokens: LazyTokens) -> None:
        self._tokens = tokens

    def take(self, block: ByteBlock) -> None:
        """Called for each block in order, before it is filled."""

    def fill(self, block: ByteBlock, begin: int) -> None:
        """Gather a block, in any thread."""
        width = self._tokens.dtype.itemsize
        block[:] = self._tokens[begin // width : (begin + len(block)) // width].view(np.uint8)

    def close(self) -> None:
        pass


class _FileBlocks:
    """A file of which blocks are read by the threads, in any order."""

    def __init__(self, path: str) -> None:
        self._path = path
        with cannot_read(path):
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def take(self, block: ByteBlock) -> None:
        """Called for each block in order, before it is filled."""

    def fill(self, block: ByteBlock, begin: int) -> None:
        """Read a block, in any thread."""
        _fill(self._file, self._path, block, begin)

    def close(self) -> None:
        os.close(self._file)


class _ObjectBlocks:
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

    def fill(self, block: ByteBlock, begin: int) -> None:
        pass

    def close(self) -> None:
        self._reader.close()


def _fill(file: int, path: str, block: ByteBlock, begin: int) -> None:
    """Read a block whole; a read may return less than was asked."""
    view = memoryview(block.data)
    while view:
        try:
            count = os.preadv(file, [view], begin)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read at byte {begin}: {error.strerror or error}"
            ) from error
        if not count:
            raise InputError(f"{path}: ends at byte {begin}: it was cut off while it was read")
        view = view[count:]
        begin += count

"""Read a whole .bin once, at the speed of the machine: chunks in threads, results in file order.

Files are read, not mapped: one that is cut off meanwhile is an error and not a signal.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tokpack.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

Result = TypeVar("Result")
Block = npt.NDArray[np.uint8]

CHUNK_BYTES = 1 << 21  # a multiple of every item size; stays in the cache of a core
_MOST_THREADS = 32


def scan(
    path: str, size: int, look: Callable[[int, Block], Result], *, digest: Any = None
) -> Generator[tuple[int, Result], None, None]:
    """Call ``look(begin, block)`` for the chunks of the first ``size`` bytes of ``path``.

    ``look`` runs in threads, several at a time; what it returns comes in the order of the file,
    with the byte where its chunk ends. ``digest`` (anything with ``update``) is fed in order, from
    the same read. Memory is bounded by two chunks a thread. InputError where the file cannot be
    read or is shorter.
    """
    threads = min(_MOST_THREADS, (os.cpu_count() or 1) + 2)  # two more: some wait for the disk
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    free = [np.empty(min(CHUNK_BYTES, size), np.uint8) for _ in range(2 * threads)]
    waiting: deque[Future[tuple[Block, int, Result]]] = deque()

    def work(buffer: Block, begin: int) -> tuple[Block, int, Result]:
        block = buffer[: min(CHUNK_BYTES, size - begin)]
        _fill(file, path, block, begin)
        return block, begin, look(begin, block)

    pool = ThreadPoolExecutor(threads)
    try:
        begin = 0
        while begin < size or waiting:
            while free and begin < size:
                waiting.append(pool.submit(work, free.pop(), begin))
                begin += CHUNK_BYTES
            block, at, result = waiting.popleft().result()
            if digest is not None:
                digest.update(block)
            free.append(block if block.base is None else block.base)
            yield at + len(block), result
    finally:
        pool.shutdown(cancel_futures=True)
        os.close(file)


def _fill(file: int, path: str, block: Block, begin: int) -> None:
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

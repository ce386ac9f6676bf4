"""Tokens that lie on a store, asked for in few requests, all at once, before they are needed."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tokpack.indexed.stored import MOST_BYTES, read
from tokpack.stores import KeptRanges
from tokpack.stores.cache import kept_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.indexed.stored import Span, Tokens
    from tokpack.stores import StoredObject

    Cell = tuple[StoredObject, int, int]  # bytes of a .bin that are kept together

AHEAD_BYTES = 64 << 20  # about so many bytes of samples are asked for before they are needed
MOST_AHEAD = 32  # and no more batches than this

_MOST_FILES = 1 << 14
_files: dict[Cell, str] = {}  # files of the cache that this process has found

Numbers = TypeVar("Numbers", bound="Sequence[int]")


class BlockFetch:
    """Spans that are read from copies of whole blocks in the cache of the machine.

    A block is copied once for all processes. Each span comes with the range [first, end) of tokens
    of the .bin that is its block.
    """

    def __init__(self, spans: Iterable[tuple[Span, int, int]]) -> None:
        self._spans = [(span, list(_cut(span, first, end))) for span, first, end in spans]
        cells = dict.fromkeys(cell for _, parts in self._spans for cell, _, _ in parts)
        missing = [cell for cell in cells if _file_of(cell) is None]
        self._coming = KeptRanges(missing) if missing else None

    def take(self) -> Iterator[tuple[int, Tokens]]:
        """Each row with its tokens, once. InputError, OutputError."""
        if self._coming is not None:
            self._coming.take()
        for span, parts in self._spans:
            data = b"".join(_kept_bytes(*part) for part in parts)
            yield span.row, np.frombuffer(data, span.tokens.dtype)

    def close(self) -> None:
        """Give up what has not been read."""
        if self._coming is not None:
            self._coming.close()


def _cut(span: Span, first: int, end: int) -> Iterator[tuple[Cell, int, int]]:
    """The cells of its block that have the bytes of a span: (cell, first byte in it, bytes)."""
    width, stored = span.tokens.dtype.itemsize, span.tokens.stored
    at, stop = span.begin * width, (span.begin + span.length) * width
    while at < stop:
        begin = at - (at - first * width) % MOST_BYTES
        until = min(begin + MOST_BYTES, end * width)
        yield (stored, begin, until), at - begin, min(until, stop) - at
        at = until


def _file_of(cell: Cell) -> str | None:
    path = _files.get(cell)
    if path is None and (path := kept_range(*cell)) is not None:
        if len(_files) == _MOST_FILES:
            _files.clear()
        _files[cell] = path
    return path


def _kept_bytes(cell: Cell, at: int, size: int) -> bytes:
    path = _file_of(cell)
    if path is not None:
        with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            data = os.pread(file.fileno(), size, at)
            if len(data) == size:
                return data
    _files.pop(cell, None)  # the cache has removed it, to make room for others
    stored, begin, _ = cell
    return read(stored, begin + at, begin + at + size)


def asked_ahead(samples: Any, batches: Iterable[Numbers]) -> Iterable[Numbers]:
    """The same lists of sample numbers, each given after the store was asked for the next ones.

    ``samples`` is a GPTDataset or a blend; where it lies on disks there is nothing to ask.
    """
    return _asking(samples, batches) if getattr(samples, "on_store", False) else batches


def _asking(samples: Any, batches: Iterable[Numbers]) -> Iterator[Numbers]:
    coming: deque[Numbers] = deque()
    for numbers in batches:
        samples.ask(numbers)
        coming.append(numbers)
        size = max(1, 4 * samples.seq_length * len(numbers))
        while len(coming) > min(MOST_AHEAD, AHEAD_BYTES // size):
            yield coming.popleft()
    yield from coming

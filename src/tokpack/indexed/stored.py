"""The tokens of a .bin on a store: ranges of them are read when they are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.stores import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tokpack.stores import StoredObject

Tokens = npt.NDArray[Any]

LEAST_BYTES = 16 << 10  # of a request; less takes as long
MOST_BYTES = 4 << 20  # of one request, also for several ranges
GAP_BYTES = 32 << 10  # two ranges that are no further apart are read with one request


class LazyTokens:
    """All tokens of a shard that are not mapped: a slice of them is a new array, read-only."""

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
    """All tokens of ``stored``, as ``dtype``: a slice is a new array, read-only.

    Who takes slices that follow each other has more and more read ahead. InputError where the
    object is another one now, or the store does not give it.
    """

    def __init__(self, stored: StoredObject, dtype: np.dtype[Any]) -> None:
        self.stored = stored
        self.dtype = dtype
        self._window: tuple[int, bytes] = 0, b""  # the byte where it begins, and what was read

    @property
    def nbytes(self) -> int:
        """The size of the .bin."""
        return self.stored.size

    def __getitem__(self, which: slice) -> Tokens:
        begin, end, step = which.indices(len(self))
        width = self.dtype.itemsize
        tokens = np.frombuffer(self._bytes(begin * width, max(begin, end) * width), self.dtype)
        return tokens[::step]

    def _bytes(self, begin: int, end: int) -> bytes:
        at, data = self._window
        if begin == end:
            return b""
        if not at <= begin <= end <= at + len(data):
            # A read that goes on from the last window doubles what is read ahead.
            ahead = 2 * len(data) if at < begin <= at + len(data) else LEAST_BYTES
            size = max(end - begin, min(ahead, MOST_BYTES))
            data = read(self.stored, begin, min(begin + size, self.nbytes))
            at, self._window = begin, (begin, data)
        return data[begin - at : end - at]


def as_integers(values: Tokens) -> Tokens:
    """The same bytes as integers, which are all that the core copies."""
    return values if values.dtype.kind in "iu" else values.view(f"<i{values.itemsize}")


def read(stored: StoredObject, begin: int, end: int) -> bytes:
    """Bytes [begin, end) of an object, however many."""
    pieces = range(begin, end, MOST_BYTES)
    return b"".join(Ranges([(stored, at, min(at + MOST_BYTES, end)) for at in pieces]).take())


class Span(NamedTuple):
    """``length`` tokens of a .bin from token ``begin`` on, which row ``row`` asks for."""

    row: int
    tokens: StoredTokens
    begin: int
    length: int


class Fetch:
    """Requests for spans, which are under way; spans that lie close together share a request."""

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
        """Each row with its tokens, once. InputError."""
        data = self._ranges.take()
        for span, number in zip(self._spans, self._of, strict=True):
            dtype = span.tokens.dtype
            at = span.begin * dtype.itemsize - self._requests[number][1]
            yield span.row, np.frombuffer(data[number], dtype, span.length, at)

    def close(self) -> None:
        """Give up what has not been read."""
        self._ranges.close()

"""The tokens of a .bin on a store: ranges of them are read when they are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.stores import Ranges

if TYPE_CHECKING:
    from tokpack.stores import StoredObject

Tokens = npt.NDArray[Any]

LEAST_BYTES = 16 << 10  # of a request; less takes as long
MOST_BYTES = 4 << 20  # that are read ahead of who reads on


class StoredTokens:
    """All tokens of ``found``, as ``dtype``: a slice is a new array, read-only.

    Who takes slices that follow each other has more and more read ahead. InputError where the
    object is another one now, or the store does not give it.
    """

    def __init__(self, stored: StoredObject, dtype: np.dtype[Any]) -> None:
        self.stored = stored
        self.dtype = dtype
        self._window: tuple[int, bytes] = 0, b""  # the byte where it begins, and what was read

    def __len__(self) -> int:
        """Number of tokens."""
        return self.nbytes // self.dtype.itemsize

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


def read(stored: StoredObject, begin: int, end: int) -> bytes:
    """Bytes [begin, end) of an object, however many."""
    pieces = range(begin, end, MOST_BYTES)
    return b"".join(Ranges([(stored, at, min(at + MOST_BYTES, end)) for at in pieces]).take())

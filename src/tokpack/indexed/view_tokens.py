"""The tokens of a view as one array that lies nowhere: slices of it are gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokpack.indexed.manifest import TRACK_DTYPES
from tokpack.indexed.shards import frozen
from tokpack.indexed.stored import LazyTokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.indexed.stored import Tokens
    from tokpack.indexed.view import ViewIndex

    Int64s = npt.NDArray[np.int64]

_STEP = 1 << 20  # tokens handled at a time


class ViewTokens(LazyTokens):
    """The tokens of a view, one sequence after the other, gathered from where they lie.

    Or, likewise, their values in a ``track``.
    """

    def __init__(self, index: ViewIndex, tokens: int, track: str | None = None) -> None:
        self.dtype = index.header.dtype if track is None else TRACK_DTYPES[track]
        self._index, self._track = index, track
        self._count = tokens

    @property
    def nbytes(self) -> int:
        """Bytes of all tokens."""
        return self._count * self.dtype.itemsize

    def __getitem__(self, which: slice) -> Tokens:
        begin, end, step = which.indices(self._count)
        _ = self._index.lengths  # FormatError where the view has not so many
        out = np.empty(max(end - begin, 0), self.dtype)
        done = 0
        for rows in self._rows(begin, end):
            ends = np.cumsum(rows[:, 2])
            count = int(ends[-1])
            part = out[done : done + count]
            self._index.gather(rows, ends - rows[:, 2], part, self._track)
            done += count
        return frozen(out[::step])

    def _rows(self, begin: int, end: int) -> Iterator[Int64s]:
        """The rows that hold tokens [begin, end), some at a time."""
        lengths, sums = self._index.lengths, self._index.sums
        sequence = sums.ending_within(begin)
        offset = begin - sums.total(0, sequence)
        while begin < end:
            part = lengths[sequence : sequence + _STEP].astype(np.int64)
            part[0] -= offset
            ends = np.cumsum(part)
            most = min(end - begin, _STEP)
            count = min(int(np.searchsorted(ends, most)) + 1, len(ends))
            rows = np.zeros((count, 3), np.int64)
            rows[:, 0] = np.arange(sequence, sequence + count)
            rows[0, 1] = offset
            rows[:, 2] = np.diff(np.minimum(ends[:count], most), prepend=0)
            yield rows
            begin += int(rows[:, 2].sum())
            sequence += count
            offset = 0
            if left := int(ends[count - 1]) - int(rows[:, 2].sum()):
                sequence -= 1
                offset = int(lengths[sequence]) - left

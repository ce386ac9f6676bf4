"""The tokens of rows, copied out of a dataset by the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokpack import _core
from tokpack.errors import FormatError
from tokpack.indexed.virtual import VirtualIndexedDataset

if TYPE_CHECKING:
    import numpy.typing as npt

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.samples.orders.rows import Counts, Rows

    Int64s = npt.NDArray[np.int64]


class Gatherer:
    """Copies tokens of ``dataset``, whose rows are checked before a byte of them is read."""

    def __init__(self, dataset: MMapIndexedDataset) -> None:
        self._dataset = dataset
        virtual = isinstance(dataset, VirtualIndexedDataset)
        self._file = None if virtual else _open(dataset)

    def fill(self, text: Int64s, rows: Rows, counts: Counts, places: Int64s) -> None:
        """Write the tokens of samples into ``text`` (int64 [B, S + 1]).

        Sample i has ``counts[i]`` of the rows; its tokens go to the beginning of
        ``text[places[i]]``, and what they do not fill becomes 0. FormatError for rows that are not
        in the dataset or do not fit, and for a sequence whose entry in the index is wrong.
        """
        try:
            if self._file is None:
                self._fill_from_pieces(text, rows, counts, places)
                return
            wrong = self._file.gather_samples(rows, counts, places, text)
        except ValueError as error:
            name = self._dataset.path_prefix
            raise FormatError(f"{name}: {error}: the order does not fit the samples") from None
        if wrong >= 0:
            raise _broken(self._dataset, *rows[wrong].tolist())

    def _fill_from_pieces(self, text: Int64s, rows: Rows, counts: Counts, places: Int64s) -> None:
        dataset = self._dataset
        if not isinstance(dataset, VirtualIndexedDataset):
            raise TypeError(dataset)
        targets = _core.lay_out(rows, counts, places, text)
        inside = (rows[:, 0] >= 0) & (rows[:, 0] < len(dataset))
        if not inside.all():
            raise _broken(dataset, *rows[~inside][0].tolist())
        pieces = np.searchsorted(dataset.starts, rows[:, 0], side="right") - 1
        for number in np.unique(pieces).tolist():
            here = np.flatnonzero(pieces == number)
            own = rows[here]
            own[:, 0] -= dataset.starts[number]
            part = dataset.part(number)
            wrong = _open(part).gather(own, targets[here], text)
            if wrong >= 0:
                raise _broken(part, *own[wrong].tolist())


def _open(dataset: MMapIndexedDataset) -> _core.TokenFile:
    return _core.TokenFile(dataset.tokens, dataset.pointers, dataset.sizes)


def _broken(dataset: MMapIndexedDataset, sequence: int, first: int, count: int) -> Exception:
    """What is wrong with a row, in the words of the reader."""
    try:
        if sequence >= 0:
            dataset.get(sequence, first, count)
    except (FormatError, IndexError) as error:
        return FormatError(f"{error}: the order does not fit the dataset")
    return FormatError(
        f"{dataset.path_prefix}: tokens {first} to {first + count} of sequence {sequence}, which "
        "does not exist: the order does not fit the dataset"
    )

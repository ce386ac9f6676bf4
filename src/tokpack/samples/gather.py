"""The tokens of rows, copied out of a dataset by the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokpack import _core
from tokpack.errors import FormatError

if TYPE_CHECKING:
    import numpy.typing as npt

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.indexed.shard import Shard
    from tokpack.samples.orders.rows import Counts, Rows

    Int64s = npt.NDArray[np.int64]


class Gatherer:
    """Copies tokens of ``dataset``, whose rows are checked before a byte of them is read."""

    def __init__(self, dataset: MMapIndexedDataset) -> None:
        self._dataset = dataset
        # Of several shards each is opened when it is needed.
        self._file = _open(dataset.shard(0)) if len(dataset.starts) == 2 else None

    def fill(self, text: Int64s, rows: Rows, counts: Counts, places: Int64s) -> None:
        """Write the tokens of samples into ``text`` (int64 [B, S + 1]).

        Sample i has ``counts[i]`` of the rows; its tokens go to the beginning of
        ``text[places[i]]``, and what they do not fill becomes 0. FormatError for rows that are not
        in the dataset or do not fit, and for a sequence whose entry in the index is wrong.
        """
        try:
            if self._file is None:
                self._fill_from_shards(text, rows, counts, places)
                return
            wrong = self._file.gather_samples(rows, counts, places, text)
        except ValueError as error:
            name = self._dataset.path_prefix
            raise FormatError(f"{name}: {error}: the order does not fit the samples") from None
        if wrong >= 0:
            raise _broken(self._dataset, *rows[wrong].tolist())

    def _fill_from_shards(self, text: Int64s, rows: Rows, counts: Counts, places: Int64s) -> None:
        dataset = self._dataset
        targets = _core.lay_out(rows, counts, places, text)
        inside = (rows[:, 0] >= 0) & (rows[:, 0] < len(dataset))
        if not inside.all():
            raise _broken(dataset, *rows[~inside][0].tolist())
        shards = np.searchsorted(dataset.starts, rows[:, 0], side="right") - 1
        for number in np.unique(shards).tolist():
            here = np.flatnonzero(shards == number)
            own = rows[here]
            own[:, 0] -= dataset.starts[number]
            wrong = _open(dataset.shard(number)).gather(own, targets[here], text)
            if wrong >= 0:
                raise _broken(dataset, *rows[here][wrong].tolist())


def _open(shard: Shard) -> _core.TokenFile:
    return _core.TokenFile(shard.tokens, shard.index.pointers, shard.index.lengths)


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

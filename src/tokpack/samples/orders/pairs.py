"""Pairs of documents, a chosen and a rejected answer: two samples that follow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokpack import _core
from tokpack.errors import UsageError
from tokpack.samples.orders.epochs import EpochOrder, Epochs
from tokpack.samples.orders.packing import PackingStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from tokpack.samples.orders.rows import Counts, OrderInput, Rows

_PAIRS = 7  # what a permutation is for; the other orders have 0 to 6


def pairs_in(begin: int, end: int) -> range:
    """The pairs of which both sequences, 2i and 2i + 1, are among [begin, end)."""
    return range((begin + 1) // 2, end // 2)


class PairOrder(EpochOrder):
    """The pairs of its data, epoch after epoch without end.

    Samples 2k and 2k + 1 are the sequences 2i and 2i + 1 of the dataset, in this order, each as far
    as ``seq_length + extra`` tokens hold it; ``stats.left_out`` are the tokens behind. Every epoch
    has all pairs in another order. UsageError where there is none.
    """

    joined = False

    def __init__(self, data: OrderInput) -> None:
        pairs = pairs_in(data.begin, data.end)
        if not pairs:
            raise UsageError(
                f"sequences {data.begin} to {data.end}: no pair, which are sequences 2i and 2i + 1"
            )
        self._first = 2 * pairs.start
        self._lengths = data.lengths
        self._capacity = capacity = data.seq_length + data.extra
        self.samples = samples = 2 * len(pairs)
        part = data.lengths[self._first : self._first + samples]
        tokens = int(np.sum(part, dtype=np.int64))
        kept = np.minimum(part, capacity)
        placed = int(np.sum(kept, dtype=np.int64))
        self.stats = PackingStats(
            samples=samples,
            pieces=samples,
            tokens=tokens,
            left_out=tokens - placed,
            placed=placed,
            labels=placed - int(np.count_nonzero(kept)),
            padding=samples * capacity - placed,
            cut=int(np.count_nonzero(part > capacity)),
            short=int(np.count_nonzero(part < 2)),
        )
        self.tokens = tokens
        self._orders = Epochs(
            lambda epoch: _core.Permutation(len(pairs), _core.mix(*data.key, epoch, _PAIRS))
        )

    def _locate_one(self, epoch: int, place: int) -> Rows:
        return self._locate_in(epoch, np.array([place], np.int64))[0]

    def _locate_in(self, epoch: int, places: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        pairs, second = np.divmod(places, 2)
        rows = np.zeros((len(places), 3), np.int64)
        rows[:, 0] = self._first + 2 * self._orders[epoch].many(pairs) + second
        rows[:, 2] = np.minimum(self._lengths[rows[:, 0]], self._capacity)
        return rows, np.ones(len(places), np.int64)

    def _finder(self, sequences: range) -> Callable[[int], Iterator[int]]:
        numbers = range(
            max(sequences.start - self._first, 0), min(sequences.stop - self._first, self.samples)
        )
        full = [number for number in numbers if self._lengths[self._first + number]]
        return lambda epoch: (
            2 * self._orders[epoch].inverse(number // 2) + number % 2 for number in full
        )

"""The stateless order: sample k is a pure function of the dataset, the settings and k.

Every epoch puts the sequences into a new order, cuts their tokens into samples and takes the
samples in a new order. Nothing is stored: both orders are permutations that can be computed at any
place, and the lengths' sums are kept at every 64th sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from tokpack import _core
from tokpack.samples.orders.epochs import EpochOrder, Epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt

    from tokpack.samples.orders.rows import Counts, OrderInput, Rows

_SEQUENCES, _SAMPLES = 0, 1  # what a permutation is for, in its key


class StatelessOrder(EpochOrder):
    """The samples of its data, epoch after epoch without end.

    An epoch has ``samples`` samples; no token comes twice in one, except that the last token of a
    sample is the first of another where ``extra`` is 1. Fewer than ``seq_length`` tokens at the end
    of an epoch's order are left out, other ones in every epoch.
    """

    def __init__(self, data: OrderInput) -> None:
        part, extra = data.part, data.extra
        self._begin, self._count = data.begin, len(part)
        self.tokens = data.tokens
        self.samples = samples = max(self.tokens - extra, 0) // data.seq_length

        def make(epoch: int) -> tuple[_core.DocumentOrder, _core.Permutation]:
            """The shuffled sequences of an epoch, and the order of the samples cut from them."""
            sequences = _core.mix(*data.key, epoch, _SEQUENCES)
            order = _core.Permutation(samples, _core.mix(*data.key, epoch, _SAMPLES))
            return _core.DocumentOrder(part, data.seq_length, extra, sequences), order

        self._orders = Epochs(make)
        self._sequences = Epochs(
            lambda epoch: _core.Permutation(len(part), _core.mix(*data.key, epoch, _SEQUENCES))
        )

    def _locate_one(self, epoch: int, place: int) -> Rows:
        documents, samples = self._orders[epoch]
        return documents.locate(samples.at(place))

    def _locate_in(self, epoch: int, places: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        documents, samples = self._orders[epoch]
        return documents.locate_many(samples.many(places))

    def _finder(self, sequences: range) -> Callable[[int], Iterator[int]]:
        part = range(sequences.start - self._begin, sequences.stop - self._begin)

        def places_in(epoch: int) -> Iterator[int]:
            order = self._orders[epoch][1]
            for sequence in part:
                yield from map(order.inverse, self._cut_from(sequence, epoch))

        return places_in

    def _cut_from(self, sequence: int, epoch: int) -> Iterator[int]:
        """The samples of an epoch that hold a sequence, numbered as they were cut."""
        documents, place_of = self._orders[epoch][0], self._sequences[epoch].inverse
        if not 0 <= sequence < self._count:
            return
        place = place_of(sequence)

        def begins(number: int) -> int:
            return place_of(int(documents.locate(number)[0, 0]))

        # The first sequences of samples have ascending places; the sample before may end here too.
        first = max(bisect_left(range(self.samples), place, key=begins) - 1, 0)
        for number in range(first, self.samples):
            rows = documents.locate(number)
            if place_of(int(rows[0, 0])) > place:
                return
            if sequence in rows[:, 0]:
                yield number

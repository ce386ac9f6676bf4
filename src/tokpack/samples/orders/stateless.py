"""The stateless order: sample k is a pure function of the dataset, the settings and k.

Every epoch puts the sequences into a new order, cuts their tokens into samples and takes the
samples in a new order. Nothing is stored: both orders are permutations that can be computed at any
place, and the lengths' sums are kept at every 64th sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.samples.orders.epochs import Epochs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.samples.orders.rows import Counts, Numbers, Rows

_SEQUENCES, _SAMPLES = 0, 1  # what a key is for


class StatelessOrder:
    """The samples of the sequences [begin, end), epoch after epoch without end.

    ``lengths`` int32 [n] are the tokens of every sequence of the dataset, ``tokens`` the sum of
    those of the order, where it is known. An epoch has ``samples``
    samples, cut from ``tokens`` tokens; no token comes twice in one, except that the last token of
    a sample is the first of another where ``extra`` is 1. Fewer than ``seq_length`` tokens at the
    end of an epoch's order are left out, other ones in every epoch.
    """

    joined = True

    def __init__(
        self,
        lengths: npt.NDArray[np.int32],
        begin: int,
        end: int,
        seq_length: int,
        *,
        extra: int,
        seed: int,
        fingerprint: int,
        tokens: int | None = None,
    ) -> None:
        part, key = lengths[begin:end], (seed, fingerprint, begin, end)
        self._begin, self._count = begin, end - begin
        self.tokens = int(np.sum(part, dtype=np.int64)) if tokens is None else tokens
        self.samples = samples = max(self.tokens - extra, 0) // seq_length

        def make(epoch: int) -> tuple[_core.DocumentOrder, _core.Permutation]:
            """The sequences of an epoch, one behind the other, and the order of their samples."""
            sequences = _core.mix(*key, epoch, _SEQUENCES)
            order = _core.Permutation(samples, _core.mix(*key, epoch, _SAMPLES))
            return _core.DocumentOrder(part, seq_length, extra, sequences), order

        self._orders = Epochs(make)
        self._sequences = Epochs(
            lambda epoch: _core.Permutation(end - begin, _core.mix(*key, epoch, _SEQUENCES))
        )

    def locate(self, sample: int) -> Rows:
        """Where the tokens of sample ``sample`` >= 0 lie: int64 [k, 3], in their order.

        A row is a sequence of the dataset, the first of its tokens and their number, which is not
        0; the numbers add up to ``seq_length + extra``.
        """
        if sample < 0:
            raise IndexError(f"sample {sample}: they are counted from 0")
        epoch, place = divmod(sample, self.samples)
        documents, samples = self._orders[epoch]
        rows: Rows = documents.locate(samples.at(place))
        if self._begin:
            rows[:, 0] += self._begin
        return rows

    def locate_many(self, samples: Numbers) -> tuple[Rows, Counts]:
        """``locate`` of each: all rows, one after the other, and how many each sample has."""
        if len(samples) == 1:
            rows = self.locate(int(samples[0]))
            return rows, np.array([len(rows)], np.int64)
        numbers = np.asarray(samples, np.int64)
        if not len(numbers):
            return np.empty((0, 3), np.int64), np.empty(0, np.int64)
        lowest = int(numbers.min())
        if lowest < 0:
            raise IndexError(f"sample {lowest}: they are counted from 0")
        epoch = lowest // self.samples
        if int(numbers.max()) < (epoch + 1) * self.samples:
            return self._locate_in(epoch, numbers - epoch * self.samples)
        return self._locate_across(numbers)

    def find(self, sequences: range, samples: int) -> Iterator[int]:
        """Which of the first ``samples`` have tokens of any of ``sequences``, in order.

        By the inverses of both permutations: an epoch takes the pass over the lengths that makes
        its order.
        """
        wanted = range(sequences.start - self._begin, sequences.stop - self._begin)
        for epoch in range(-(-samples // self.samples)):
            order = self._orders[epoch][1]
            cut = {number for sequence in wanted for number in self._cut_from(sequence, epoch)}
            first = epoch * self.samples
            found = sorted(first + order.inverse(number) for number in cut)
            yield from (number for number in found if number < samples)

    def _cut_from(self, sequence: int, epoch: int) -> Iterator[int]:
        """The samples of an epoch, before they were put into an order, that hold a sequence."""
        documents, place_of = self._orders[epoch][0], self._sequences[epoch].inverse
        if not 0 <= sequence < self._count:
            return
        place = place_of(sequence)

        def begins(number: int) -> int:
            return place_of(int(documents.locate(number)[0, 0]))

        # Samples begin in sequences that lie ever later; the one before may end in this one.
        first = max(bisect_left(range(self.samples), place, key=begins) - 1, 0)
        for number in range(first, self.samples):
            rows = documents.locate(number)
            if place_of(int(rows[0, 0])) > place:
                return
            if sequence in rows[:, 0]:
                yield number

    def _locate_across(self, numbers: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        """``locate_many`` of samples of several epochs."""
        epochs, places = np.divmod(numbers, self.samples)
        changes = np.flatnonzero(np.diff(epochs)) + 1
        rows, counts = zip(
            *(
                self._locate_in(int(epochs[begin]), places[begin:end])
                for begin, end in pairwise([0, *changes.tolist(), len(numbers)])
            ),
            strict=True,
        )
        return np.concatenate(rows), np.concatenate(counts)

    def _locate_in(self, epoch: int, places: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        documents, samples = self._orders[epoch]
        rows, counts = documents.locate_many(samples.many(places))
        if self._begin:
            rows[:, 0] += self._begin
        return rows, counts

"""What the orders without an end share: sample k is one of epoch ``k // samples``."""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tokpack.samples.orders.rows import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.samples.orders.rows import Counts, Numbers, Rows

T = TypeVar("T")
KEPT = 2  # epochs: a batch may have samples of one and of the next


class Epochs(Generic[T]):
    """``make(epoch)``, of which the last few are kept. Several threads may ask at once."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._kept: dict[int, T] = {}  # replaced, never changed, so that other threads may read it

    def __getitem__(self, epoch: int) -> T:
        kept = self._kept
        if epoch not in kept:
            before = list(kept.items())[1 - KEPT :]
            self._kept = kept = {**dict(before), epoch: self._make(epoch)}
        return kept[epoch]


class EpochOrder(Order):
    """Samples without end: the ``samples`` of epoch 0, then those of epoch 1, and so on.

    Every epoch reads the same sequences, each in an order of its own.
    """

    _begin = 0  # the sequence of the dataset that is the first of those that rows have

    def locate(self, sample: int) -> Rows:
        """Where the tokens of sample ``sample`` >= 0 lie: int64 [k, 3], in their order.

        A row is a sequence of the dataset, the first of its tokens and their number, which is not
        0; the numbers add up to ``seq_length + extra``, or less where samples are padded.
        """
        if sample < 0:
            raise IndexError(f"sample {sample}: they are counted from 0")
        rows = self._locate_one(*divmod(sample, self.samples))
        if self._begin:
            rows[:, 0] += self._begin
        return rows

    def locate_many(self, samples: Numbers) -> tuple[Rows, Counts]:
        """``locate`` of each sample: all rows, one after the other, and int64 [B], rows of each."""
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
            rows, counts = self._locate_in(epoch, numbers - epoch * self.samples)
        else:
            epochs, places = np.divmod(numbers, self.samples)
            edges = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(numbers)]
            parts = (self._locate_in(int(epochs[a]), places[a:b]) for a, b in pairwise(edges))
            rows, counts = map(np.concatenate, zip(*parts, strict=True))
        if self._begin:
            rows[:, 0] += self._begin
        return rows, counts

    def find(self, sequences: range, samples: int) -> Iterator[int]:
        """As of every order; computed by the inverses of the permutations."""
        places_in = self._finder(sequences)
        for epoch in range(-(-samples // self.samples)):
            first = epoch * self.samples
            numbers = sorted({first + place for place in places_in(epoch)})
            yield from (number for number in numbers if number < samples)

    @abstractmethod
    def _locate_one(self, epoch: int, place: int) -> Rows:
        """The rows of the sample at ``place`` in an epoch."""

    @abstractmethod
    def _locate_in(self, epoch: int, places: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        """The rows of several, and how many each has."""

    @abstractmethod
    def _finder(self, sequences: range) -> Callable[[int], Iterable[int]]:
        """Epoch -> the places in it of the samples that have tokens of ``sequences``."""

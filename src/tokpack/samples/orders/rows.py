"""The interface of orders: where the tokens of samples are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Numbers = Sequence[int] | npt.NDArray[np.int64]  # of samples


Rows = npt.NDArray[np.int64]  # [k, 3]: sequence, first token in it, number of tokens
Counts = npt.NDArray[np.int64]  # [B]: rows of each sample


@dataclass(frozen=True)
class OrderInput:
    """The input of an order: sequences [begin, end) of a dataset, to be cut into samples.

    ``lengths`` int32 [n] are the tokens of every sequence of the dataset, aligned or not. A sample
    reads ``seq_length`` tokens and ``extra`` more, 0 or 1. ``token_count`` is that of the
    sequences, if it is known. Packed documents begin at multiples of ``multiple`` in a sample.
    """

    lengths: npt.NDArray[np.int32]
    begin: int
    end: int
    seq_length: int
    extra: int
    seed: int
    fingerprint: int  # of the data
    token_count: int | None = None
    multiple: int = 1

    @property
    def part(self) -> npt.NDArray[np.int32]:
        """The lengths of the sequences [begin, end)."""
        return self.lengths[self.begin : self.end]

    @cached_property
    def tokens(self) -> int:
        """The number of tokens of these sequences."""
        if self.token_count is not None:
            return self.token_count
        return int(np.sum(self.part, dtype=np.int64))

    @property
    def key(self) -> tuple[int, int, int, int]:
        """The beginning of the keys of all permutations; the epoch and a purpose follow."""
        return self.seed, self.fingerprint, self.begin, self.end


_CHUNK = 1 << 16  # how many samples ``find`` locates at a time


class Order(ABC):
    """Says where the tokens of every sample are.

    ``tokens`` are those of the chosen part, ``samples`` the samples of an epoch (in orders of other
    programs, of all epochs). ``joined``: the pieces of a sample are one running text; otherwise
    they are separate documents, and the label between two of them does not count.
    """

    tokens: int
    samples: int
    joined = True

    @abstractmethod
    def locate_many(self, samples: Numbers) -> tuple[Rows, Counts]:
        """The rows of samples, one sample after the other, and int64 [B], the number of rows of
        each.

        Rows are int64 [k, 3]: sequence, first token in it, number of tokens. The numbers of a
        sample add up to ``seq_length + extra``, or less: the rest is padding. IndexError for a
        sample that does not exist.
        """

    def find(self, sequences: range, samples: int) -> Iterator[int]:
        """The numbers of the samples below ``samples`` with tokens of ``sequences``, in order.

        Here every sample is located, in some tenths of a microsecond; an order with an inverse
        computes them directly.
        """
        samples = min(samples, self.samples)
        for begin in range(0, samples, _CHUNK):
            numbers = np.arange(begin, min(begin + _CHUNK, samples))
            rows, counts = self.locate_many(numbers)
            inside = (rows[:, 0] >= sequences.start) & (rows[:, 0] < sequences.stop)
            inside &= rows[:, 2] > 0
            yield from numbers[
                np.unique(np.repeat(np.arange(len(counts)), counts)[inside])
            ].tolist()


T = TypeVar("T")
KEPT = 2  # epochs: a batch may span two


class Epochs(Generic[T]):
    """The results of ``make(epoch)``; the last few are kept. Several threads may use it at once."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._kept: dict[int, T] = {}  # never changed, only replaced: other threads may read it

    def __getitem__(self, epoch: int) -> T:
        kept = self._kept
        if epoch not in kept:
            before = list(kept.items())[1 - KEPT :]
            self._kept = kept = {**dict(before), epoch: self._make(epoch)}
        return kept[epoch]


class EpochOrder(Order):
    """Samples without end: the ``samples`` of epoch 0, then those of epoch 1, and so on.

    Every epoch reads the same sequences, each in its own order.
    """

    _begin = 0  # the number in the dataset of the first sequence

    def locate(self, sample: int) -> Rows:
        """The places of the tokens of sample ``sample`` >= 0: int64 [k, 3], in their order.

        A row is a sequence of the dataset, the first of its tokens and their number, which is not
        0; the numbers add up to ``seq_length + extra``, or less if samples are padded.
        """
        if sample < 0:
            raise IndexError(f"sample {sample}: samples are numbered from 0")
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
            raise IndexError(f"sample {lowest}: samples are numbered from 0")
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
        """As ``Order.find``, computed by the inverses of the permutations."""
        places_in = self._finder(sequences)
        for epoch in range(-(-samples // self.samples)):
            first = epoch * self.samples
            numbers = sorted({first + place for place in places_in(epoch)})
            yield from (number for number in numbers if number < samples)

    def _locate_one(self, epoch: int, place: int) -> Rows:
        """The rows of the sample at ``place`` in an epoch."""
        return self._locate_in(epoch, np.array([place], np.int64))[0]

    @abstractmethod
    def _locate_in(self, epoch: int, places: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        """The rows of several samples of an epoch, and the number of rows of each."""

    @abstractmethod
    def _finder(self, sequences: range) -> Callable[[int], Iterable[int]]:
        """A function from an epoch to the places in it of samples with tokens of ``sequences``."""

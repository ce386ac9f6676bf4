"""Where the tokens of samples lie: what every order gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Numbers = Sequence[int] | npt.NDArray[np.int64]  # of samples

Rows = npt.NDArray[np.int64]  # [k, 3]: sequence, first token in it, number of tokens
Counts = npt.NDArray[np.int64]  # [B]: rows of each sample


@dataclass(frozen=True)
class OrderInput:
    """What an order is made of: sequences [begin, end) of a dataset, cut into samples.

    ``lengths`` int32 [n] are the tokens of every sequence of the dataset, aligned or not. A sample
    reads ``seq_length`` tokens and ``extra`` more, 0 or 1. ``token_count`` is that of the
    sequences, where it is known. Packed documents begin at multiples of ``multiple`` in a sample.
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
        """Tokens of these sequences."""
        if self.token_count is not None:
            return self.token_count
        return int(np.sum(self.part, dtype=np.int64))

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What the keys of all permutations begin with; the epoch and its purpose follow."""
        return self.seed, self.fingerprint, self.begin, self.end


_CHUNK = 1 << 16  # samples that ``find`` locates at a time


class Order(ABC):
    """Where the tokens of every sample lie.

    ``tokens`` are those of the chosen part, ``samples`` the samples of an epoch (in the orders of
    other programs, of all epochs). ``joined``: the pieces of a sample are one running text;
    otherwise they are separate documents, and the label that would lead from one into the next does
    not count.
    """

    tokens: int
    samples: int
    joined = True

    @abstractmethod
    def locate_many(self, samples: Numbers) -> tuple[Rows, Counts]:
        """The rows of samples, one sample after the other, and int64 [B], how many each has.

        Rows are int64 [k, 3]: sequence, first token in it, number of tokens. The numbers of a
        sample add up to ``seq_length + extra``, or less: the rest is padding. IndexError for a
        sample that does not exist.
        """

    def find(self, sequences: range, samples: int) -> Iterator[int]:
        """Which of the first ``samples`` have tokens of any of ``sequences``, in order.

        Here every sample is located, which takes some tenths of a microsecond each; an order that
        has an inverse computes them by it.
        """
        for begin in range(0, samples, _CHUNK):
            numbers = np.arange(begin, min(begin + _CHUNK, samples))
            rows, counts = self.locate_many(numbers)
            inside = (rows[:, 0] >= sequences.start) & (rows[:, 0] < sequences.stop)
            inside &= rows[:, 2] > 0
            yield from numbers[
                np.unique(np.repeat(np.arange(len(counts)), counts)[inside])
            ].tolist()

"""Where the tokens of samples lie: what every order gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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


OwnOrderName = Literal["stateless", "stateless-blocks"]
FlavourName = Literal[
    "megatron",
    "megatron-0.10",
    "megatron-0.9",
    "megatron-0.7",
    "megatron-0.4",
    "neox",
    "bigscience",
    "microsoft",
]
OrderName = Literal[OwnOrderName, FlavourName]
PackingName = Literal["none", "best_fit", "document", "pairs", "pack_until_overflow", "unpacked"]


@dataclass(frozen=True, slots=True)
class OrderRules:
    """The rules of an order of tokpack; those of other programs are a Flavour.

    - ``endless``: there is a sample k for every k, and it is the same whatever number of samples is
      asked for. So weights may change on the way, nothing is stored without packing, samples are
      whole, and each lies in one epoch. In the others the number of samples decides them, there
      may be a shorter last one, and a sample may go on in the next epoch.
    - ``split_rule``: how a split string is rounded, as in ``parse_split``
    - ``takes_pad_id``: whether tokens equal to ``pad_id`` are masked
    """

    endless: ClassVar[bool] = True

    name: str
    split_rule: Literal["core", "classic"]
    takes_pad_id: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Flavour(OrderRules):
    """The rules of one program of the Megatron family.

    - ``last_epoch_share``: the last epoch is shuffled by itself when the run needs less than this
      share of it; 0 for never
    - ``last_epoch_slack``: how many samples of the last epoch the run may need beyond the number
      that the program computes; with more it stops
    - ``wide``: when the sample index is int64: where a number "needs" it, where it has so many
      "rows", or "always"
    - ``blend_size``: the samples of a blend: the sum of the "targets" of its datasets, of what they
      are "asked" for, or of the "lengths" that they come to have
    - ``blend_sums_in_python``: weights are divided by a sum of Python before that of numpy
    - ``blend_dtype``, ``blend_datasets``: of the dataset index, and how many datasets it can hold
    """

    endless: ClassVar[bool] = False

    last_epoch_share: float
    last_epoch_slack: int
    wide: Literal["needs", "rows", "always"]
    blend_size: Literal["targets", "asked", "lengths"]
    blend_sums_in_python: bool = False
    blend_dtype: Literal["int16", "uint8"] = "int16"
    blend_datasets: int = 2**15 - 2


FLAVOURS: dict[str, Flavour] = {
    flavour.name: flavour
    for flavour in (
        Flavour("megatron", "core", 0.80, 1, "needs", "targets", takes_pad_id=True),
        Flavour("megatron-0.10", "core", 0.80, 1, "needs", "asked", takes_pad_id=True),
        Flavour("megatron-0.9", "core", 0.80, 1, "always", "asked", takes_pad_id=True),
        Flavour("megatron-0.7", "core", 0.80, 1, "needs", "asked", takes_pad_id=True),
        Flavour("megatron-0.4", "classic", 0.80, 1, "needs", "asked", takes_pad_id=True),
        Flavour("neox", "classic", 0, 0, "rows", "lengths", True, "uint8", 254),
        Flavour("bigscience", "classic", 0.95, 0, "needs", "lengths", True, "uint8", 254),
        Flavour("microsoft", "classic", 0.80, 1, "always", "asked", False, "uint8", 254),
    )
}
ORDERS: dict[str, OrderRules] = {
    **{name: OrderRules(name, "core") for name in get_args(OwnOrderName)},
    **FLAVOURS,
}


@dataclass(frozen=True, slots=True)
class PackingRules:
    """The rules of a packing.

    - ``order``: the order that it goes with; None for any
    - ``one_document``: a sample has one sequence, or a piece of one
    - ``counted``: the lengths alone tell how many samples there are
    - ``needs_samples``: their number decides them, and so must be given
    - ``group``: so many samples in a row belong together, from a multiple of it on
    """

    order: str | None
    one_document: bool = False
    counted: bool = True
    needs_samples: bool = False
    group: int = 1


PACKINGS: dict[str, PackingRules] = {
    "none": PackingRules(None),
    "best_fit": PackingRules("stateless", counted=False),
    "document": PackingRules("stateless", one_document=True),
    "pairs": PackingRules("stateless", one_document=True, group=2),
    "pack_until_overflow": PackingRules("neox", needs_samples=True),
    "unpacked": PackingRules("neox", needs_samples=True),
}


def rules_of(order: str) -> OrderRules:
    """The rules of the order of that name; UsageError where there is none."""
    try:
        return ORDERS[order]
    except KeyError:
        raise UsageError(f"order {order!r} is unknown: use one of {', '.join(ORDERS)}") from None


def flavour_named(name: str) -> Flavour:
    """The rules of the program of that name; UsageError where there is none."""
    try:
        return FLAVOURS[name]
    except KeyError:
        raise UsageError(f"order {name!r} is unknown: use one of {', '.join(FLAVOURS)}") from None

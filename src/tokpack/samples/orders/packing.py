"""Documents packed into samples, each whole if it fits: best-fit, or one document a sample.

The same documents share a sample in all epochs; only the order of samples differs. Stored are two
bytes per document: its place in a window of documents, sample by sample. Everything else is
computed from the lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokpack import _core
from tokpack.errors import FormatError, UsageError
from tokpack.samples.cache import ChunkedArray
from tokpack.samples.orders.rows import EpochOrder, Epochs, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from tokpack.samples.cache import CacheEntry, IndexCache
    from tokpack.samples.orders.rows import Counts, OrderInput, Rows


_WINDOWS, _SAMPLES = 2, 3  # purposes of permutations; the stateless order has 0 and 1


@dataclass(frozen=True)
class PackingStats:
    """The result of packing the sequences of a dataset.

    ``tokens`` are all tokens; ``left_out`` are in sequences, or rests of sequences, with fewer than
    two tokens, where there is nothing to predict. ``pieces`` have ``placed`` tokens: where a
    sequence is cut, one token is in both pieces, as label and as input. ``labels`` are predicted
    tokens, ``padding`` the rest of the samples. ``cut`` sequences are longer than a sample,
    ``short`` ones have fewer than two tokens. ``untrained`` of the ``cut`` ones have no trained
    token in their sample, counted only for pairs.
    """

    samples: int
    pieces: int
    tokens: int
    left_out: int
    placed: int
    labels: int
    padding: int
    cut: int
    short: int
    untrained: int = 0

    @property
    def fill(self) -> float:
        """The share of the samples that is not padding."""
        return self.placed / (self.placed + self.padding)


class PackedOrder(EpochOrder):
    """The samples of its data, epoch after epoch without end.

    A sequence of more than ``seq_length + extra`` tokens is cut: piece k is its tokens from
    ``k * seq_length`` on. So with ``extra`` 1 each token except the first of a sequence is a label
    exactly once in an epoch.

    ``packing`` is "best_fit": in windows of 32,768 sequences in random order, the longest piece
    goes first, into the fullest sample that has room; or "document": one piece per sample. With a
    ``cache`` the arrays are mapped from the file ``cached``; else they are built in memory.

    ``stored_bytes`` is the size of the arrays. UsageError if no sequence has two tokens.
    """

    joined = False

    def __init__(
        self, data: OrderInput, packing: str = "best_fit", cache: IndexCache | None = None
    ) -> None:
        part, seq_length, extra = data.part, data.seq_length, data.extra
        self._begin = data.begin
        key = _core.mix(*data.key, _WINDOWS)

        def build() -> list[ChunkedArray]:
            together = packing == "best_fit"
            arrays = _core.pack(
                part, seq_length, extra, key, together=together, multiple=data.multiple
            )
            return [ChunkedArray.of(name, array) for name, array in arrays.items()]

        settings = {
            "layout": 2,  # of the arrays
            "data": data.fingerprint,
            "begin": data.begin,
            "end": data.end,
            "seq_length": seq_length,
            "extra": extra,
            "seed": data.seed,
            "packing": packing,
        }
        if data.multiple > 1:
            settings["multiple"] = data.multiple
        self.cached: CacheEntry | None = None
        if cache is None:
            arrays = {part.name: part.array() for part in build()}
        else:
            self.cached = cache.entry("packing", settings, build)
            arrays = self.cached.arrays
        try:
            self._packing = _core.Packing(
                part,
                seq_length,
                extra,
                key,
                entries=arrays["entries"],
                starts=arrays["starts"],
                windows=arrays["windows"],
                multiple=data.multiple,
            )
        except ValueError as error:
            where = None if self.cached is None else self.cached.path
            raise FormatError(f"{where}: {error}: delete it to build it again") from error
        self.stored_bytes = sum(array.nbytes for array in arrays.values())
        self.samples = samples = len(self._packing)
        if self.samples == 0:
            raise UsageError(
                f"sequences {data.begin} to {data.end}: none has two tokens in a sample of "
                f"{seq_length + extra}, so there is nothing to predict"
            )
        self.tokens, left_out, pieces, placed, labels, cut, short = arrays["totals"].tolist()
        padding = samples * (seq_length + extra) - placed
        self.stats = PackingStats(
            samples, pieces, self.tokens, left_out, placed, labels, padding, cut, short
        )
        self._orders = Epochs(
            lambda epoch: _core.Permutation(samples, _core.mix(*data.key, epoch, _SAMPLES))
        )

    def _locate_one(self, epoch: int, place: int) -> Rows:
        return self._packing.locate(self._orders[epoch].at(place))

    def _locate_in(self, epoch: int, places: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        return self._packing.locate_many(self._orders[epoch].many(places))

    def _finder(self, sequences: range) -> Callable[[int], Iterator[int]]:
        order = self._orders[0]  # any epoch: samples have the same documents in all
        stored = [order.at(number) for number in Order.find(self, sequences, self.samples)]
        return lambda epoch: map(self._orders[epoch].inverse, stored)


# Pairs of documents, a chosen and a rejected answer, become two consecutive samples.

_PAIRS = 7  # the purpose of a permutation; the other orders have 0 to 6


def pairs_in(begin: int, end: int) -> range:
    """The pairs whose sequences 2i and 2i + 1 are both in [begin, end)."""
    return range((begin + 1) // 2, end // 2)


class PairOrder(EpochOrder):
    """The pairs of its data, epoch after epoch without end.

    Samples 2k and 2k + 1 are the sequences 2i and 2i + 1 of the dataset, in this order, each cut to
    ``seq_length + extra`` tokens; ``stats.left_out`` are the tokens that are cut off. Every epoch
    has all pairs in another order. UsageError if there is none.
    """

    joined = False

    def __init__(self, data: OrderInput) -> None:
        pairs = pairs_in(data.begin, data.end)
        if not pairs:
            raise UsageError(
                f"sequences {data.begin} to {data.end}: there is no pair of sequences 2i and 2i + 1"
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

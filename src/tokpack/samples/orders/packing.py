"""Documents packed into samples, each whole where it fits: best-fit, or one document a sample.

Which documents share a sample is the same in all epochs; the order of the samples is another in
each. Two bytes a document are stored: its place in a window of documents, sample after sample. The
rest is computed from the lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import FormatError, UsageError
from tokpack.samples.orders.epochs import Epochs
from tokpack.samples.orders.rows import scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokpack.samples.cache.store import CacheFile, IndexCache
    from tokpack.samples.orders.rows import Counts, Numbers, Rows

OwnPackingName = Literal["best_fit", "document"]
PACKED: tuple[str, ...] = get_args(OwnPackingName)
LONGEST_SAMPLE = 2**24 - 1

_WINDOWS, _SAMPLES = 2, 3  # what a key is for; the stateless order has 0 and 1


@dataclass(frozen=True)
class PackingStats:
    """What packing did to the sequences of a dataset.

    ``tokens`` are all of them, ``left_out`` those of sequences, or ends of them, of fewer than two
    tokens, in which there is nothing to predict. ``pieces`` have ``placed`` tokens: where a
    sequence is cut, one token is in both pieces, as label and as input. ``labels`` are the tokens
    predicted from the tokens before. ``padding`` is what the samples have room for besides.
    """

    samples: int
    pieces: int
    tokens: int
    left_out: int
    placed: int
    labels: int
    padding: int

    @property
    def fill(self) -> float:
        """The share of the samples that is not padding."""
        return self.placed / (self.placed + self.padding)


class PackedOrder:
    """The samples of the sequences [begin, end), epoch after epoch without end.

    ``lengths`` int32 [n] are the tokens of every sequence of the dataset. A sequence of more than
    ``seq_length + extra`` tokens is cut: piece k is its tokens from ``k * seq_length`` on. So with
    ``extra`` 1 each token but a sequence's first is a label exactly once in an epoch.

    ``packing`` is "best_fit": within windows of 32,768 sequences in random order the longest
    piece goes first, to the sample with the least room that it fits in; or "document": one piece a
    sample. With a ``cache`` the arrays are mapped from a file, and ``cached`` says which; else they
    are built in memory.

    ``stored_bytes`` is the size of the arrays. UsageError where no sequence has two tokens.
    """

    joined = False

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
        packing: str = "best_fit",
        cache: IndexCache | None = None,
    ) -> None:
        part = lengths[begin:end]
        self._begin = begin
        identity = (seed, fingerprint, begin, end)
        key = _core.mix(*identity, _WINDOWS)

        def build() -> Mapping[str, npt.NDArray[Any]]:
            return _core.pack(part, seq_length, extra, key, together=packing == "best_fit")

        settings = {
            "layout": 1,  # of the arrays; another one is another file
            "data": fingerprint,
            "begin": begin,
            "end": end,
            "seq_length": seq_length,
            "extra": extra,
            "seed": seed,
            "packing": packing,
        }
        self.cached: CacheFile | None = None
        if cache is None:
            arrays = dict(build())
        else:
            self.cached = cache.file("packing", settings, build)
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
            )
        except ValueError as error:
            where = None if self.cached is None else self.cached.path
            raise FormatError(f"{where}: {error}: delete it, and it is built again") from error
        self.stored_bytes = sum(array.nbytes for array in arrays.values())
        self.samples = samples = len(self._packing)
        if self.samples == 0:
            raise UsageError(
                f"sequences {begin} to {end}: none has two tokens in a sample of "
                f"{seq_length + extra}, so there is nothing to predict"
            )
        self.stats = _stats(arrays["totals"], self.samples, seq_length + extra)
        self.tokens = self.stats.tokens
        self._orders = Epochs(
            lambda epoch: _core.Permutation(samples, _core.mix(*identity, epoch, _SAMPLES))
        )

    def locate(self, sample: int) -> Rows:
        """Where the tokens of sample ``sample`` >= 0 lie: int64 [k, 3].

        A row is a sequence of the dataset, the first of its tokens and their number, 2 or more; the
        numbers add up to ``seq_length + extra`` or less.
        """
        if sample < 0:
            raise IndexError(f"sample {sample}: they are counted from 0")
        rows: Rows = self._packing.locate(self._place(sample))
        if self._begin:
            rows[:, 0] += self._begin
        return rows

    def locate_many(self, samples: Numbers) -> tuple[Rows, Counts]:
        """``locate`` of each sample: all rows, one after the other, and int64 [B], rows of each."""
        if len(samples) == 1:
            rows = self.locate(int(samples[0]))
            return rows, np.array([len(rows)], np.int64)
        numbers = np.asarray(samples, np.int64)
        lowest, highest = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        if lowest < 0:
            raise IndexError(f"sample {lowest}: they are counted from 0")
        epoch = lowest // self.samples
        if highest < (epoch + 1) * self.samples:
            places = self._orders[epoch].many(numbers - epoch * self.samples)
        else:
            places = np.array([self._place(number) for number in numbers.tolist()], np.int64)
        rows, counts = self._packing.locate_many(places)
        if self._begin:
            rows[:, 0] += self._begin
        return rows, counts

    def find(self, sequences: range, samples: int) -> Iterator[int]:
        """Which of the first ``samples`` have tokens of any of ``sequences``, in order.

        The samples of one epoch are all looked at; those of the others follow.
        """
        kept = [self._place(number) for number in scan(self.locate_many, sequences, self.samples)]
        for epoch in range(-(-samples // self.samples)):
            order, first = self._orders[epoch], epoch * self.samples
            found = sorted(first + order.inverse(place) for place in kept)
            yield from (number for number in found if number < samples)

    def _place(self, sample: int) -> int:
        """Which of the stored samples this is."""
        epoch, place = divmod(sample, self.samples)
        return self._orders[epoch].at(place)


def _stats(totals: npt.NDArray[np.int64], samples: int, capacity: int) -> PackingStats:
    tokens, left_out, pieces, placed, labels = totals.tolist()
    return PackingStats(
        samples, pieces, tokens, left_out, placed, labels, samples * capacity - placed
    )

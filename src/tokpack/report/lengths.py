"""Lengths of documents: percentiles and a histogram."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokpack.indexed.lengths import release

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from tokpack.indexed import MMapIndexedDataset

    Counts = npt.NDArray[np.int64]

PERCENTILES = (1, 10, 50, 90, 99)
_SHORT = 1 << 16  # lengths that are counted in an array
_CHUNK = 1 << 20  # documents looked at together


@dataclass(frozen=True)
class Lengths:
    """Tokens a document: extremes, mean, and the percentiles of PERCENTILES, which are lengths of
    documents themselves."""

    minimum: int
    maximum: int
    mean: float
    percentiles: dict[int, int]

    def rows(self) -> list[tuple[str, float]]:
        """Name and value, from the shortest to the longest, then the mean."""
        middle = [(f"{share}%", float(value)) for share, value in self.percentiles.items()]
        ends = (("min", float(self.minimum)), ("max", float(self.maximum)))
        return [ends[0], *middle, ends[1], ("mean", self.mean)]


def summarize(lengths: Counts, counts: Counts) -> Lengths | None:
    """Percentiles of a tally; None without documents."""
    if not lengths.size:
        return None
    running = np.cumsum(counts)
    total = int(running[-1])
    ranks = [max(-(-total * share // 100), 1) for share in PERCENTILES]  # the inverted CDF
    values = lengths[np.searchsorted(running, ranks)]
    return Lengths(
        int(lengths[0]),
        int(lengths[-1]),
        sum(map(operator.mul, lengths.tolist(), counts.tolist())) / total,
        dict(zip(PERCENTILES, values.tolist(), strict=True)),
    )


def tally(chunks: Iterable[Counts]) -> tuple[Counts, Counts]:
    """The different lengths in arrays of int64, ascending, and how many documents have each.

    Memory grows with the number of different lengths only, which is below the root of twice the
    tokens.
    """
    short = np.zeros(_SHORT, np.int64)
    long = Counter[int]()
    for chunk in chunks:
        few = np.bincount(chunk[chunk < _SHORT])
        short[: len(few)] += few
        lengths, counts = np.unique(chunk[chunk >= _SHORT], return_counts=True)
        long.update(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))
    used = np.flatnonzero(short)
    more = np.array(sorted(long.items()), np.int64).reshape(-1, 2)
    return np.concatenate((used, more[:, 0])), np.concatenate((short[used], more[:, 1]))


@dataclass(frozen=True)
class Bin:
    """Documents of ``begin`` to ``end - 1`` tokens, and all their tokens."""

    begin: int
    end: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class LengthStats:
    """How long the documents of a dataset are."""

    documents: int
    tokens: int
    lengths: Lengths | None
    histogram: tuple[Bin, ...]


def measure(dataset: MMapIndexedDataset) -> LengthStats:
    """Read the index of a dataset, some ns a sequence, and none of its tokens.

    Memory does not grow with the index. FormatError where an entry of it is broken.
    """
    dataset.validate()
    lengths, counts = tally(_length_chunks(dataset))
    bins = tuple(histogram(lengths, counts))
    return LengthStats(dataset.documents, dataset.token_count, summarize(lengths, counts), bins)


def _length_chunks(dataset: MMapIndexedDataset) -> Iterator[Counts]:
    """Tokens of each document, some at a time."""
    for shard in dataset.shards():
        bounds, pointers = shard.index.doc_idx, shard.index.pointers
        size, end = shard.dtype.itemsize, shard.tokens.nbytes
        for begin in range(0, len(bounds) - 1, _CHUNK):
            firsts = np.array(bounds[begin : begin + _CHUNK + 1])
            inside = firsts < len(shard)
            places = np.full(len(firsts), end, np.int64)
            places[inside] = pointers[firsts[inside]]
            yield np.diff(places) // size
            release(shard.index.lengths)


def histogram(lengths: Counts, counts: Counts) -> list[Bin]:
    """Bins of a tally that double every second step, from the shortest document to the longest."""
    if not lengths.size:
        return []
    steps = 2 * int(lengths[-1]).bit_length() + 1
    edges = np.unique(np.round(2.0 ** (np.arange(-2, steps + 1) / 2)).astype(np.int64))
    edges = np.concatenate([[0], edges[edges > 0]])
    bins = np.searchsorted(edges, lengths, side="right") - 1
    documents = np.bincount(bins, weights=counts, minlength=len(edges))
    tokens = np.bincount(bins, weights=lengths * counts, minlength=len(edges))
    return [
        Bin(int(edges[i]), int(edges[i + 1]), int(documents[i]), int(tokens[i]))
        for i in range(int(bins[0]), int(bins[-1]) + 1)
    ]

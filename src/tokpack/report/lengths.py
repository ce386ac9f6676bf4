"""Lengths of documents: percentiles and a histogram."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokpack.indexed.lengths import document_ends

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from tokpack.indexed import MMapIndexedDataset

PERCENTILES = (1, 10, 50, 90, 99)
_SHORT = 1 << 16  # lengths that are counted in an array


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
        middle = [(_ordinal(share), float(value)) for share, value in self.percentiles.items()]
        ends = (("min", float(self.minimum)), ("max", float(self.maximum)))
        return [ends[0], *middle, ends[1], ("mean", self.mean)]


def summarize(chunks: Iterable[npt.NDArray[np.int64]]) -> Lengths | None:
    """Percentiles of the lengths in arrays of int64; None without documents.

    Memory grows with the number of different lengths only, which is below the root of twice the
    tokens.
    """
    lengths, counts = _tally(chunks)
    if not lengths.size:
        return None
    running = np.cumsum(counts)
    total = int(running[-1])
    wanted = [max(-(-total * share // 100), 1) for share in PERCENTILES]  # the inverted CDF
    values = lengths[np.searchsorted(running, wanted)]
    return Lengths(
        int(lengths[0]),
        int(lengths[-1]),
        sum(map(operator.mul, lengths.tolist(), counts.tolist())) / total,
        dict(zip(PERCENTILES, values.tolist(), strict=True)),
    )


def _tally(
    chunks: Iterable[npt.NDArray[np.int64]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The different lengths, ascending, and how many documents have each."""
    short = np.zeros(_SHORT, np.int64)
    long = Counter[int]()
    for chunk in chunks:
        found = np.bincount(chunk[chunk < _SHORT])
        short[: len(found)] += found
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
    """Read the lengths of a dataset, some ns a sequence, and none of its tokens."""
    lengths = np.diff(document_ends(dataset.sizes, dataset.doc_idx))
    found = tuple(histogram(lengths))
    return LengthStats(dataset.documents, dataset.token_count, summarize([lengths]), found)


def histogram(lengths: npt.NDArray[np.int64]) -> list[Bin]:
    """Bins that double every second step, from the shortest document to the longest."""
    if not lengths.size:
        return []
    steps = 2 * int(lengths.max()).bit_length() + 1
    edges = np.unique(np.round(2.0 ** (np.arange(-2, steps + 1) / 2)).astype(np.int64))
    edges = np.concatenate([[0], edges[edges > 0]])
    bins = np.searchsorted(edges, lengths, side="right") - 1
    documents = np.bincount(bins, minlength=len(edges))
    tokens = np.bincount(bins, weights=lengths, minlength=len(edges))
    used = np.flatnonzero(documents)
    return [
        Bin(int(edges[i]), int(edges[i + 1]), int(documents[i]), int(tokens[i]))
        for i in range(int(used[0]), int(used[-1]) + 1)
    ]


def _ordinal(share: int) -> str:
    return f"{share}%"

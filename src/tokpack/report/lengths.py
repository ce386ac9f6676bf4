"""Lengths of documents: percentiles and a histogram."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

PERCENTILES = (1, 10, 50, 90, 99)


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

    def to_json(self) -> dict[str, Any]:
        """A form that ``json`` can write."""
        return asdict(self)


def summarize(lengths: npt.NDArray[np.int64]) -> Lengths | None:
    """Percentiles of int64 [documents]; None without documents."""
    if not lengths.size:
        return None
    values = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
    return Lengths(
        int(lengths.min()),
        int(lengths.max()),
        float(lengths.mean()),
        dict(zip(PERCENTILES, (int(value) for value in values), strict=True)),
    )


@dataclass(frozen=True)
class Bin:
    """Documents of ``begin`` to ``end - 1`` tokens, and all their tokens."""

    begin: int
    end: int
    documents: int
    tokens: int


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

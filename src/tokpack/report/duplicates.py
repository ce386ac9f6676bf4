"""Documents that occur more than once, by their hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokpack.display import shown

if TYPE_CHECKING:
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report.spelling import Spelling

_FIRST = 4  # documents shown of a group
_TOKENS = 64
_CHARACTERS = 80


@dataclass(frozen=True)
class DuplicateGroup:
    """``copies`` equal documents of ``length`` tokens; ``documents`` are the first of them.

    ``text`` is how they begin, "" where no tokenizer says.
    """

    copies: int
    length: int
    documents: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Duplicates:
    """Documents equal to an earlier one, token for token.

    documents  how many there are: what a removal of duplicates would take away
    tokens     their tokens
    groups     different texts that occur more than once
    examples   the groups that waste the most tokens
    """

    documents: int
    tokens: int
    groups: int
    examples: tuple[DuplicateGroup, ...]


@dataclass(frozen=True)
class CrossDuplicates:
    """Documents of one dataset that are also in another, token for token, and their tokens."""

    documents: int
    tokens: int


class DuplicateFinder:
    """Compares the documents of several datasets by their hashes, 16 bytes for each.

    Ids mean the same in all of them only if their tokenizer is the same.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]] = []

    def add(self, lengths: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]) -> None:
        """Take in a dataset: tokens and hash of each of its documents."""
        self._seen.append((lengths, hashes))

    def result(self) -> list[CrossDuplicates]:
        """What each dataset shares with the others, in the order in which they were taken in."""
        different = [np.unique(hashes[lengths > 0]) for lengths, hashes in self._seen]
        every = np.sort(np.concatenate([np.zeros(0, np.uint64), *different]))
        several = np.unique(every[1:][every[1:] == every[:-1]])
        result = []
        for lengths, hashes in self._seen:
            repeated = np.isin(hashes, several) & (lengths > 0)
            result.append(
                CrossDuplicates(int(np.count_nonzero(repeated)), int(lengths[repeated].sum()))
            )
        return result


def find_duplicates(
    dataset: MMapIndexedDataset,
    lengths: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    spelling: Spelling | None = None,
    *,
    examples: int = 20,
) -> Duplicates:
    """Group documents by their 64-bit hash; empty ones do not count.

    ``lengths`` are their tokens.

    Two different documents share a hash once in 2^64 pairs: among a billion documents one such
    pair is expected in 37 datasets. The examples are compared token by token.
    """
    order = np.argsort(hashes, kind="stable")
    order = order[lengths[order] > 0]
    sorted_hashes = hashes[order]
    first = np.ones(len(order), bool)
    first[1:] = sorted_hashes[1:] != sorted_hashes[:-1]
    starts = np.flatnonzero(first)
    copies = np.diff(np.append(starts, len(order)))
    repeated = copies > 1
    starts, copies = starts[repeated], copies[repeated]
    again = order[~first]
    wasted = (copies - 1) * lengths[order[starts]]
    worst = np.lexsort((order[starts], -wasted))[:examples]
    spans = zip(starts[worst], copies[worst], strict=True)
    groups = (_group(dataset, order[start : start + size], spelling) for start, size in spans)
    return Duplicates(
        documents=len(again),
        tokens=int(lengths[again].sum()),
        groups=len(starts),
        examples=tuple(group for group in groups if group),
    )


def _group(
    dataset: MMapIndexedDataset, documents: npt.NDArray[np.int64], spelling: Spelling | None
) -> DuplicateGroup | None:
    """The group, unless its first two documents only share a hash."""
    first, second = (dataset.document(int(number)) for number in documents[:2])
    if not np.array_equal(first, second):
        return None
    text = ""
    if spelling:
        start = spelling.text(first[:_TOKENS].tolist())
        more = "\N{HORIZONTAL ELLIPSIS}".encode() if len(first) > _TOKENS else b""
        text = shown(start + more, limit=_CHARACTERS)
    return DuplicateGroup(len(documents), len(first), tuple(documents[:_FIRST].tolist()), text)

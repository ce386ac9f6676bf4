"""Datasets in which many documents are copies of others, exact and near."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from support.documents import Documents, plain
from support.indexed_twin import write_plainly

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Flat = list[list[int]]


def write_all(folder: Path, parts: Sequence[Documents], letter: str = "H") -> list[str]:
    """A dataset for each part; their prefixes."""
    for number, documents in enumerate(parts):
        write_plainly(folder / f"part{number}", plain(documents, letter))
    return [str(folder / f"part{number}") for number in range(len(parts))]


def flat(parts: Sequence[Documents]) -> Flat:
    """The tokens of every document."""
    return [
        [one for sequence in document for one in sequence] for part in parts for document in part
    ]


def near_copies(seed: int, count: int, vocabulary: int = 3000) -> Flat:
    """Documents of which many are near copies of others, more and less alike, in any order."""
    random = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        first = random.integers(0, vocabulary, random.integers(3, 200)).tolist()
        documents.append(first)
        for _ in range(random.integers(0, 4)):
            other = list(first)
            for _ in range(random.integers(0, 1 + len(other) // 40)):
                place = int(random.integers(0, len(other)))
                if random.integers(0, 2):
                    other[place] = int(random.integers(0, vocabulary))
                else:
                    other.insert(place, int(random.integers(0, vocabulary)))
            documents.append(other[: random.integers(len(other) * 3 // 4, len(other) + 1)])
    return [documents[number] for number in random.permutation(len(documents))]

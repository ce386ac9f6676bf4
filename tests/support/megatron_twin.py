"""Slow, obviously right twins of the Megatron family's orders."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


def sample_index(
    lengths: Sequence[int], documents: Sequence[int], seq_length: int, extra: int, samples: int
) -> list[tuple[int, int]]:
    """Walk from sample to sample, as those programs do, token count by token count."""
    rows = [(0, 0)]
    position, offset = 0, 0
    for _ in range(samples):
        remaining = seq_length + extra
        while remaining:
            rest = lengths[documents[position]] - offset
            if rest >= remaining:
                offset += remaining - extra
                remaining = 0
            else:
                remaining -= rest
                position += 1
                offset = 0
        if extra and offset == lengths[documents[position]]:
            raise AssertionError("the extra token lies in this sequence")
        rows.append((position, offset))
    return rows


def stream(
    lengths: Sequence[int], documents: Sequence[int], offset: int, count: int
) -> list[tuple[int, int]]:
    """Tokens offset to offset + count of all the documents: (sequence, token in it) of each."""
    tokens = [(document, token) for document in documents for token in range(lengths[document])]
    return tokens[offset : offset + count]


def blend(
    weights: Sequence[float], size: int, limits: Sequence[float] | None = None
) -> tuple[list[int], list[int]]:
    counts = [0] * len(weights)
    datasets, samples = [], []
    for sample in range(size):
        lacks = [
            weight * max(float(sample), 1.0) - count if limits is None or count < limit else -inf
            for weight, count, limit in zip(weights, counts, limits or weights, strict=True)
        ]
        neediest = int(np.argmax(lacks))
        datasets.append(neediest)
        samples.append(counts[neediest])
        counts[neediest] += 1
    return datasets, samples

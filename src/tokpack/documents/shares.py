"""Shares of documents, drawn by their hashes: the same documents wherever and whenever.

Whether a document is in a share depends on its tokens and a seed alone. So a larger share contains
the smaller ones, a document stays where it is when others are added, and equal documents are
together, in one share or in the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.documents.exact import token_hashes
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.table import NO_TOKENS
from tokpack.machine import usable_cores

if TYPE_CHECKING:
    from tokpack.documents.base import Base

Hashes = npt.NDArray[np.uint64]

_STEP = 1 << 16  # numbers handled at a time, so that they stay in the cache
_BUCKET_BITS = 16
_BUCKET_SHIFT = np.uint64(64 - _BUCKET_BITS)


def draw(base: Base, seed: int) -> Hashes:
    """A number for each document of the base, alike for equal tokens: uint64 [documents].

    It is uniform, and for another ``seed`` another. Read from the tables of documents where there
    are some, and else computed from their tokens. Both documents of a pair have that of the first.
    """
    numbers = np.full(int(base.starts[-1]), NO_TOKENS, np.uint64)
    for number, record in enumerate(base.records):
        out = numbers[base.starts[number] : base.starts[number + 1], None]
        with MMapIndexedDataset(record.prefix) as dataset:
            token_hashes(
                dataset, out, threads=usable_cores(), on_bytes=lambda size: None, sums=base.sums
            )
    for begin in range(0, len(numbers), _STEP):
        _mix(numbers[begin : begin + _STEP], _core.mix(seed))
    if base.pairs:
        numbers[1::2] = numbers[::2]
    return numbers


def below(numbers: Hashes, share: float) -> npt.NDArray[np.bool_]:
    """Which of the numbers are in a share of all, in [0, 1]: bool [n]."""
    limit = int(share * 2**64)
    if limit >= 2**64:
        return np.ones(len(numbers), np.bool_)
    within: npt.NDArray[np.bool_] = numbers < np.uint64(limit)
    return within


def lowest(numbers: Hashes, weights: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.bool_]:
    """The documents of the lowest numbers whose weights are at most ``most`` together: bool [n].

    Those of weight 0 count for nothing and may be among them. Those of one number are together
    among them, or not.
    """
    sums, room = np.zeros(1 << _BUCKET_BITS), np.empty(_STEP, np.uint64)
    for begin in range(0, len(numbers), _STEP):
        part = numbers[begin : begin + _STEP]
        buckets = np.right_shift(part, _BUCKET_SHIFT, out=room[: len(part)]).view(np.int64)
        sums += np.bincount(buckets, weights[begin : begin + _STEP], minlength=len(sums))
    ends = np.cumsum(sums)  # exact: far below 2^53
    bucket = int(np.searchsorted(ends, most, side="right"))
    if bucket == len(sums):
        return np.ones(len(numbers), np.bool_)
    within: npt.NDArray[np.bool_] = numbers < np.uint64(bucket << int(_BUCKET_SHIFT))
    last = _in_bucket(numbers, bucket)
    left = most - (int(ends[bucket - 1]) if bucket else 0)
    order = last[np.argsort(numbers[last], kind="stable")]
    over = order[np.cumsum(weights[order]) > left]
    within[last] = numbers[last] < numbers[over[0]] if len(over) else True
    return within


def _in_bucket(numbers: Hashes, bucket: int) -> npt.NDArray[np.int64]:
    """Where the numbers of a bucket are, ascending."""
    indices = [np.zeros(0, np.int64)]
    for begin in range(0, len(numbers), _STEP):
        part = numbers[begin : begin + _STEP] >> _BUCKET_SHIFT
        indices.append(np.flatnonzero(part == np.uint64(bucket)) + begin)
    return np.concatenate(indices)


def _mix(numbers: Hashes, key: int) -> None:
    """Splitmix64's finalizer, in place, of the numbers and a key."""
    numbers ^= np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers ^= numbers >> np.uint64(shift)
        numbers *= np.uint64(factor)
    numbers ^= numbers >> np.uint64(31)

"""Blends whose weights change at given samples, with everything before a change untouched."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Phase(NamedTuple):
    """From sample ``first`` on, dataset i gives ``shares[i]`` of the samples; 0 is none."""

    first: int
    shares: tuple[float, ...]


class BlendOrder(Protocol):
    """Which dataset gives sample g, and which of the dataset's own samples that is."""

    def locate(self, number: int, /) -> tuple[int, int]: ...
    def counts(self, size: int, /) -> npt.NDArray[np.int64]: ...


class ScheduledOrder:
    """The order of a blend in segments: each begins where the last one left the datasets.

    Inside a segment the counts of its samples have the shares of its weights, with the deviation of
    one blend; a dataset's own samples come one after the other, whatever changes between them.
    """

    def __init__(self, segments: Sequence[Phase]) -> None:
        self._firsts = [segment.first for segment in segments]
        self._parts: list[tuple[npt.NDArray[np.int64], _core.BlendOrder]] = []
        self._before: list[npt.NDArray[np.int64]] = []  # samples each dataset gave before a segment
        base = np.zeros(len(segments[0].shares), np.int64)
        for number, (first, shares) in enumerate(segments):
            active = np.flatnonzero(shares)
            order = _core.BlendOrder(np.array(shares, np.float64)[active])
            self._parts.append((active, order))
            self._before.append(base)
            if number + 1 < len(segments):
                base = base.copy()
                base[active] += order.counts(self._firsts[number + 1] - first)

    def locate(self, number: int, /) -> tuple[int, int]:
        """The dataset of sample ``number``, and the number of the sample in it."""
        if number < 0:
            raise IndexError(f"sample {number}: they are counted from 0")
        segment = bisect_right(self._firsts, number) - 1
        active, order = self._parts[segment]
        place, own = order.locate(number - self._firsts[segment])
        dataset = int(active[place])
        return dataset, int(self._before[segment][dataset]) + own

    def counts(self, size: int, /) -> npt.NDArray[np.int64]:
        """How many of the first ``size`` samples each dataset gives."""
        segment = max(bisect_right(self._firsts, size - 1) - 1, 0)
        active, order = self._parts[segment]
        counts = self._before[segment].copy()
        counts[active] += order.counts(size - self._firsts[segment])
        return counts


def blend_order(segments: Sequence[Phase]) -> BlendOrder:
    """The stateless order of a blend."""
    if len(segments) == 1 and all(segments[0].shares):
        return _core.BlendOrder(np.array(segments[0].shares, np.float64))
    return ScheduledOrder(segments)


def check_firsts(firsts: Sequence[int]) -> None:
    """UsageError unless the segments of a schedule begin at 0 and each behind the last."""
    if not firsts:
        raise UsageError("the schedule is empty: give (0, weights), (first sample, weights), ...")
    if firsts[0] != 0:
        raise UsageError(f"the schedule begins at sample {firsts[0]}, expected 0")
    for last, first in pairwise(firsts):
        if first <= last:
            raise UsageError(
                f"the schedule has sample {first} behind sample {last}: each change must come "
                "later than the one before it"
            )


def longest(order: BlendOrder, lengths: Sequence[int]) -> int:
    """The most samples of a blend for which no dataset gives more than its length."""
    limits = np.array(lengths, np.int64)
    low, high = 0, int(limits.sum())  # it fits at low, and may at high
    while low < high:
        middle = (low + high + 1) // 2
        fits = bool(np.all(order.counts(middle) <= limits))
        low, high = (middle, high) if fits else (low, middle - 1)
    return low

"""Blends whose weights change at given samples; the samples before a change stay the same."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.orders.rules import OrderRules


class Phase(NamedTuple):
    """From sample ``first`` on, dataset i gives ``shares[i]`` of the samples; 0 means none."""

    first: int
    shares: tuple[float, ...]


class BlendOrder(Protocol):
    """Which dataset gives sample g, and which of the dataset's own samples that is."""

    def locate(self, number: int, /) -> tuple[int, int]: ...
    def counts(self, size: int, /) -> npt.NDArray[np.int64]: ...


class ScheduledOrder:
    """The order of a blend in phases, each with weights of its own.

    Of the samples of a phase each dataset gives its share, with the same deviation as in a blend
    without phases. A new phase goes on with the next sample of each dataset.
    """

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._firsts = [phase.first for phase in phases]
        self._parts: list[tuple[npt.NDArray[np.int64], _core.BlendOrder]] = []
        self._before: list[npt.NDArray[np.int64]] = []  # samples each dataset gave before a phase
        base = np.zeros(len(phases[0].shares), np.int64)
        for number, (first, shares) in enumerate(phases):
            active = np.flatnonzero(shares)
            order = _core.BlendOrder(np.array(shares, np.float64)[active])
            self._parts.append((active, order))
            self._before.append(base)
            if number + 1 < len(phases):
                base = base.copy()
                base[active] += order.counts(self._firsts[number + 1] - first)

    def locate(self, number: int, /) -> tuple[int, int]:
        """The dataset of sample ``number``, and the number of the sample in it."""
        if number < 0:
            raise IndexError(f"sample {number}: they are counted from 0")
        phase = bisect_right(self._firsts, number) - 1
        active, order = self._parts[phase]
        place, own = order.locate(number - self._firsts[phase])
        dataset = int(active[place])
        return dataset, int(self._before[phase][dataset]) + own

    def counts(self, size: int, /) -> npt.NDArray[np.int64]:
        """How many of the first ``size`` samples each dataset gives."""
        phase = max(bisect_right(self._firsts, size - 1) - 1, 0)
        active, order = self._parts[phase]
        counts = self._before[phase].copy()
        counts[active] += order.counts(size - self._firsts[phase])
        return counts


def blend_order(phases: Sequence[Phase]) -> BlendOrder:
    """The stateless order of a blend."""
    if len(phases) == 1 and all(phases[0].shares):
        return _core.BlendOrder(np.array(phases[0].shares, np.float64))
    return ScheduledOrder(phases)


def check_schedule(
    names: Sequence[str], changes: Sequence[tuple[int, Sequence[float]]], rules: OrderRules
) -> None:
    """UsageError unless ``changes``, (first sample, a weight for each of ``names``), are phases."""
    if not rules.endless:
        raise UsageError(
            f"a schedule needs the stateless order: {rules.name} has one set of weights"
        )
    if not changes:
        raise UsageError("the schedule is empty: give (0, weights), (first sample, weights), ...")
    if changes[0][0] != 0:
        raise UsageError(f"the schedule begins at sample {changes[0][0]}, expected 0")
    for (last, _), (first, _) in pairwise(changes):
        if first <= last:
            raise UsageError(
                f"the schedule has sample {first} behind sample {last}: each change must come "
                "later than the one before it"
            )
    for first, weights in changes:
        check_weights(names, weights, zero=True, where=f" from sample {first} on")
    for number, name in enumerate(names):
        if not any(weights[number] for _, weights in changes):
            raise UsageError(
                f"the weight of {name} is 0 in all of the schedule: leave the dataset out, or "
                "give it a share"
            )


def check_weights(
    names: Sequence[str], weights: Sequence[float], *, zero: bool = False, where: str = ""
) -> None:
    """UsageError unless there is a weight above 0 for each of ``names``; with ``zero`` for one."""
    if len(weights) != len(names):
        raise UsageError(
            f"{len(weights)} weights for {len(names)} datasets{where}: give one for each"
        )
    for name, weight in zip(names, weights, strict=True):
        if not (0 < weight < math.inf or (zero and weight == 0)):
            raise UsageError(
                f"the weight of {name} is {weight:g}{where}, expected a number "
                f"{'of 0 or more' if zero else 'above 0'}: leave the dataset out, or give it a "
                "share"
            )
    if not any(weights):
        raise UsageError(f"the weights are all 0{where}: give one a share")


def longest(order: BlendOrder, lengths: Sequence[int]) -> int:
    """The most samples of a blend for which no dataset gives more than its length."""
    limits = np.array(lengths, np.int64)
    low, high = 0, int(limits.sum())  # low samples fit, more than high do not
    while low < high:
        middle = (low + high + 1) // 2
        fits = bool(np.all(order.counts(middle) <= limits))
        low, high = (middle, high) if fits else (low, middle - 1)
    return low

"""The order of a blend: which dataset gives sample g, and which of its own samples that is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Phase(NamedTuple):
    """From sample ``first`` on, dataset i gives ``shares[i]`` of the samples; 0 means none."""

    first: int
    shares: tuple[float, ...]


class BlendOrder(Protocol):
    """Which dataset gives sample g, and which of the dataset's own samples that is.

    ``counts`` are how many of the first samples each dataset gives.
    """

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
        place, index = order.locate(number - self._firsts[phase])
        dataset = int(active[place])
        return dataset, int(self._before[phase][dataset]) + index

    def counts(self, size: int, /) -> npt.NDArray[np.int64]:
        """How many of the first ``size`` samples each dataset gives."""
        phase = max(bisect_right(self._firsts, size - 1) - 1, 0)
        active, order = self._parts[phase]
        counts = self._before[phase].copy()
        counts[active] += order.counts(size - self._firsts[phase])
        return counts


class ListedOrder:
    """The order of a blend of another program, as two arrays.

    ``datasets`` is the dataset of each sample, ``samples`` the number that the sample has there;
    ``n`` is the number of datasets.
    """

    def __init__(self, datasets: npt.NDArray[Any], samples: npt.NDArray[np.int64], n: int) -> None:
        self._datasets = datasets
        self._samples = samples
        self._n = n
        self.size = len(datasets)

    def locate(self, number: int, /) -> tuple[int, int]:
        """The dataset of sample ``number``, and the number of the sample in it."""
        if not 0 <= number < self.size:
            raise IndexError(f"sample {number} of a blend of {self.size}")
        return int(self._datasets[number]), int(self._samples[number])

    def position(self, dataset: int, index: int) -> int:
        """The number in the blend of sample ``index`` of a dataset."""
        return int(np.flatnonzero(self._datasets == dataset)[index])

    def counts(self, size: int, /) -> npt.NDArray[np.int64]:
        """How many of the first ``size`` samples each dataset gives."""
        if not 0 <= size <= self.size:
            raise IndexError(f"{size} samples of a blend of {self.size}")
        return np.bincount(self._datasets[:size], minlength=self._n)


class GroupedOrder:
    """The order of a blend in which ``group`` samples in a row come from one dataset."""

    def __init__(self, order: BlendOrder, group: int) -> None:
        self._order, self._group = order, group

    def locate(self, number: int, /) -> tuple[int, int]:
        """The dataset of sample ``number``, and the number of the sample in it."""
        whole, place = divmod(number, self._group)
        dataset, index = self._order.locate(whole)
        return dataset, index * self._group + place

    def counts(self, size: int, /) -> npt.NDArray[np.int64]:
        """How many of the first ``size`` samples each dataset gives."""
        whole, rest = divmod(size, self._group)
        counts = self._order.counts(whole) * self._group
        if rest:
            counts[self._order.locate(whole)[0]] += rest
        return counts


def blend_order(phases: Sequence[Phase], group: int = 1) -> BlendOrder:
    """The stateless order of a blend. UsageError for a phase that begins within a group."""
    if group > 1:
        for first, _ in phases:
            if first % group:
                raise UsageError(
                    f"the weights change at sample {first}, and {group} samples belong together: "
                    f"give a multiple of {group}"
                )
        inner = [Phase(first // group, shares) for first, shares in phases]
        return GroupedOrder(blend_order(inner), group)
    if len(phases) == 1 and all(phases[0].shares):
        return _core.BlendOrder(np.array(phases[0].shares, np.float64))
    return ScheduledOrder(phases)


def position(order: BlendOrder, dataset: int, index: int) -> int:
    """The inverse of ``locate``: the number in the blend of sample ``index`` of a dataset."""
    if isinstance(order, ListedOrder):
        return order.position(dataset, index)
    end = 1
    while order.counts(end)[dataset] <= index:
        end *= 2
    return bisect_left(range(1, end), index + 1, key=lambda g: int(order.counts(g)[dataset]))


def longest(order: BlendOrder, lengths: Sequence[int]) -> int:
    """The most samples of a blend for which no dataset gives more than its length."""
    limits = np.array(lengths, np.int64)
    low, high = 0, int(limits.sum())  # low samples fit, more than high do not
    while low < high:
        middle = (low + high + 1) // 2
        fits = bool(np.all(order.counts(middle) <= limits))
        low, high = (middle, high) if fits else (low, middle - 1)
    return low

"""Several datasets as one, mixed by weights."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import partial
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.dataset import check_tokenizers
from tokpack.display import drawn
from tokpack.errors import UsageError, option
from tokpack.samples.batch import SampleDataset
from tokpack.samples.blend.spec import check_schedule, check_weights
from tokpack.samples.cache import identify
from tokpack.samples.megatron import megatron_blend
from tokpack.samples.orders import rules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokpack.samples.batch import Batch, Sample
    from tokpack.samples.gpt import GPTDataset
    from tokpack.samples.orders import Numbers, OrderName


class Phase(NamedTuple):
    """Shares of the samples from sample ``first`` on, one for each dataset; may be 0."""

    first: int
    shares: tuple[float, ...]


class BlendOrder(Protocol):
    """The order of a blend: which dataset gives sample g, and its sample number there.

    ``counts`` are how many of the first samples each dataset gives.
    """

    def locate(self, number: int, /) -> tuple[int, int]: ...
    def counts(self, size: int, /) -> npt.NDArray[np.int64]: ...


class ScheduledOrder:
    """The order of a blend in phases, each with its own weights.

    Within a phase each dataset gives its share of the samples, as exactly as in a blend without
    phases. A new phase continues with the next sample of each dataset.
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
            raise IndexError(f"sample {number}: samples are numbered from 0")
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

    ``datasets`` is the dataset of each sample, ``samples`` the number of the sample in it; ``n`` is
    the number of datasets.
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


@dataclass(frozen=True)
class GroupedOrder:
    """The order of a blend in which ``_group`` consecutive samples come from one dataset."""

    _order: BlendOrder
    _group: int

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
    """The stateless order of a blend. UsageError for a phase that begins inside of a group."""
    if group > 1:
        for first, _ in phases:
            if first % group:
                raise UsageError(
                    f"the weights change at sample {first}, but {group} samples belong together: "
                    f"give a multiple of {group}"
                )
        inner = [Phase(first // group, shares) for first, shares in phases]
        return GroupedOrder(blend_order(inner), group)
    if len(phases) == 1 and all(phases[0].shares):
        return _core.BlendOrder(np.array(phases[0].shares, np.float64))
    return ScheduledOrder(phases)


def longest(order: BlendOrder, lengths: Sequence[int]) -> int:
    """The largest number of samples with which no dataset gives more than its length."""
    limits = np.array(lengths, np.int64)
    low, high = 0, int(limits.sum())  # low samples fit, more than high do not
    while low < high:
        middle = (low + high + 1) // 2
        fits = bool(np.all(order.counts(middle) <= limits))
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


SMALLEST_SHARE = 1e-15  # shares are multiples of 2**-64 in the order


class BlendedDataset(SampleDataset):
    """Samples of several datasets, mixed in given shares from the first sample on.

    Of the first g samples, dataset i gives ``weights[i] / sum(weights) * g``, with a deviation
    below 1.5; its own samples come in their own order. Which dataset gives sample g is a function
    of the weights and g alone.

    ``datasets`` are GPTDatasets or blends. ``weights`` are positive, in any unit; by default the
    datasets' lengths. ``size`` is the number of samples: a dataset that is read to its end begins
    its next epoch. Without ``size`` the blend ends before any dataset would give more samples than
    its length.

    ``schedule`` changes the weights on the way: [(0, weights), (g, weights), ...]. From sample g on
    the shares are those of the new weights, with the same deviation; samples before g stay as they
    were, and each dataset goes on where it was. There a weight may be 0, if it is not 0 everywhere.

    Datasets in the order of another program are blended as that program does: then ``weights``
    and ``size`` are those of ``blend_request``, and each dataset has the ``samples`` that it
    says; without weights each is used up. ``fused`` gives the blend of that program on processors
    whose compilers fuse a multiply and a subtraction, such as ARM's, where ties break otherwise.

    ``schedule`` has its phases, one without a schedule, and ``weights`` the shares of the first,
    which add up to 1. ``limit`` is how many samples there are at most, None in the stateless
    orders, which have no end.

    UsageError for weights or datasets that do not fit, also for datasets of two tokenizers.
    """

    _kind = "a blend of "

    def __init__(
        self,
        datasets: Sequence[GPTDataset | BlendedDataset],
        weights: Sequence[float] | None = None,
        size: int | None = None,
        *,
        schedule: Sequence[tuple[int, Sequence[float]]] | None = None,
        fused: bool = False,
    ) -> None:
        self.datasets = list(datasets)
        _check_alike(self.datasets)
        first = self.datasets[0]
        self.seq_length: int = first.seq_length
        self.group = first.group
        self.order: OrderName = first.order
        self.path_prefix: str = ", ".join(one.path_prefix for one in self.datasets)
        self.has_labels = any(one.has_labels for one in self.datasets)
        self.on_store: bool = any(one.on_store for one in self.datasets)
        tokenizers = (one.tokenizer for one in self.datasets if one.tokenizer is not None)
        self.tokenizer: dict[str, Any] | None = next(tokenizers, None)
        if size is not None and size < 1:
            raise UsageError(f"size is {size}, expected 1 or more")
        lengths = [len(dataset) for dataset in self.datasets]
        self._weights = None if weights is None else [float(weight) for weight in weights]
        self._requested_size = size = None if size is None else as_integer(size)
        self._fused = fused
        self._changes: list[tuple[int, list[float]]] | None = None
        names = [dataset.path_prefix for dataset in self.datasets]
        rows: list[tuple[int, list[float]]]
        if schedule is None:
            rows = [(0, [*map(float, lengths)] if self._weights is None else self._weights)]
            check_weights(names, rows[0][1])
        elif weights is not None:
            raise UsageError(
                "weights and a schedule are both given: put the weights into the schedule"
            )
        else:
            rows = [(as_integer(number), list(map(float, row))) for number, row in schedule]
            check_schedule(names, rows, rules_of(self.order))
            self._changes = rows
        self.schedule = [Phase(number, self._normalised(row)) for number, row in rows]
        self.weights = list(self.schedule[0].shares)
        self._order: BlendOrder
        self.limit: int | None = None
        if rules_of(self.order).endless:
            if fused:
                raise UsageError("fused: the stateless order is the same on all processors")
            self._order = blend_order(self.schedule, self.group)
            self._size = longest(self._order, lengths) if size is None else size
            return
        if size is None and self._weights is not None:
            raise UsageError(f"a blend in the order {self.order} with weights needs a size")
        # Do not normalize weights here: each program rounds their sum in its own way.
        shares = lengths if self._weights is None else self._weights
        arrays = megatron_blend(shares, size, self.order, fused=fused)
        self._order = order = ListedOrder(*arrays, len(lengths))
        self.limit = self._size = order.size
        for dataset, count in zip(self.datasets, self.counts(self._size), strict=True):
            if dataset.limit is not None and count > dataset.limit:
                raise UsageError(
                    f"{dataset.path_prefix}: a blend of {self._size} samples needs {count} of it, "
                    f"but it has {dataset.limit}: open it with {option('samples', count)} or more"
                )

    def empty(self, samples: int, *, labels: bool = False) -> Batch:
        """The arrays of a batch whose values are not set yet; with ``labels`` also for labels."""
        return self.datasets[0].empty(samples, labels=labels or self.has_labels)

    def fill(self, batch: Batch, numbers: Numbers, places: Numbers | None = None) -> None:
        """Write samples ``numbers`` to ``places`` of a batch, by default one after the other."""
        where = range(len(numbers)) if places is None else places
        if self.on_store:
            self.ask(numbers)  # of all datasets at once
        for dataset, (indices, positions) in self._members(numbers, where).items():
            self.datasets[dataset].fill(batch, indices, positions)

    def ask(self, numbers: Numbers) -> None:
        """Request the tokens of samples from the stores, before ``fill`` needs them."""
        for dataset, (indices, _) in self._members(numbers, numbers).items():
            self.datasets[dataset].ask(indices)

    def _members(self, numbers: Numbers, places: Numbers) -> dict[int, tuple[list[int], list[int]]]:
        """For each dataset: the numbers of its samples there, and their places."""
        members: dict[int, tuple[list[int], list[int]]] = {}
        for number, place in zip(numbers, places, strict=True):
            dataset, index = self.locate(int(number))
            indices, positions = members.setdefault(dataset, ([], []))
            indices.append(index)
            positions.append(int(place))
        return members

    def sample(self, number: int) -> Sample:
        """Sample ``number`` >= 0, also beyond the length: the datasets continue, epoch after
        epoch.
        """
        dataset, index = self.locate(number)
        return self.datasets[dataset].sample(index)

    def locate(self, number: int) -> tuple[int, int]:
        """The dataset that gives sample ``number``, and the number of the sample in it."""
        return self._order.locate(number)

    def position(self, dataset: int, index: int) -> int:
        """The number in the blend of sample ``index`` of a dataset: the inverse of ``locate``."""
        order = self._order
        if isinstance(order, ListedOrder):
            return order.position(dataset, index)
        end = 1
        while order.counts(end)[dataset] <= index:
            end *= 2
        return bisect_left(range(1, end), index + 1, key=lambda g: int(order.counts(g)[dataset]))

    def counts(self, size: int) -> list[int]:
        """How many of the first ``size`` samples each dataset gives."""
        return [int(count) for count in self._order.counts(size)]

    @property
    def fingerprint(self) -> str:
        """The identity of everything that determines the tokens of every sample."""
        return self._digest(None)

    def fingerprint_at(self, consumed_samples: int) -> str:
        """The fingerprint of the first ``consumed_samples`` samples.

        In the stateless orders it excludes later changes of a schedule, and datasets without a
        weight so far: these may be changed when a run resumes.
        """
        return self._digest(consumed_samples)

    def __reduce__(self) -> tuple[Callable[..., BlendedDataset], tuple[Any, ...]]:
        arguments = self.datasets, self._weights, self._requested_size
        return partial(type(self), schedule=self._changes, fused=self._fused), arguments

    def __repr__(self) -> str:
        pairs = zip(self.datasets, self.weights, strict=True)
        shares = ", ".join(f"{weight:.3g} {one.path_prefix}" for one, weight in pairs)
        return f"BlendedDataset({shares}; {self._size} samples of {self.seq_length})"

    _repr_html_ = drawn

    def _digest(self, consumed: int | None) -> str:
        """The fingerprint of the first ``consumed`` samples, at least one; None for all of them."""
        if self.limit is not None:
            consumed = None
        phases = [s for s in self.schedule if consumed is None or s.first < max(consumed, 1)]
        counts = [None] * len(self.datasets) if consumed is None else self.counts(consumed)
        prints = [
            one.fingerprint
            if count is None or not isinstance(one, BlendedDataset)
            else one.fingerprint_at(count)
            for one, count in zip(self.datasets, counts, strict=True)
        ]
        blend: dict[str, Any] = {
            "phases": [
                (first, [pair for pair in zip(prints, shares, strict=True) if pair[1]])
                for first, shares in phases
            ]
        }
        if self.limit is not None:
            blend |= {"weights": self._weights, "size": self._requested_size, "fused": self._fused}
        return identify(blend)

    def _normalised(self, weights: Sequence[float]) -> tuple[float, ...]:
        """The shares of ``weights``. UsageError if one is so small that it would become 0."""
        largest = max(weights)
        scaled = [weight / largest for weight in weights]  # else their sum could overflow
        total = math.fsum(scaled)
        for dataset, weight, share in zip(self.datasets, weights, scaled, strict=True):
            if weight and share / total < SMALLEST_SHARE:
                raise UsageError(
                    f"{dataset.path_prefix}: the weight {weight:g} is a share of "
                    f"{share / total:g}, expected {SMALLEST_SHARE:g} or more: leave it out"
                )
        return tuple(share / total for share in scaled)


def _check_alike(datasets: Sequence[GPTDataset | BlendedDataset]) -> None:
    """Raise UsageError for datasets that cannot be in one blend."""
    if not datasets:
        raise UsageError("a blend needs at least one dataset")
    for dataset in datasets:
        if not isinstance(dataset, SampleDataset):
            raise UsageError(
                f"a blend is made of GPTDatasets and blends, not {dataset!r}: open it, as in "
                "GPTDataset(prefix, seq_length)"
            )
    first = datasets[0]
    for dataset in datasets[1:]:
        if dataset.seq_length != first.seq_length:
            raise UsageError(
                f"{first.path_prefix} has samples of {first.seq_length} tokens, "
                f"{dataset.path_prefix} of {dataset.seq_length}: they must be equal in a blend"
            )
        names, expected = (list(one.empty(0).at(slice(None))) for one in (dataset, first))
        if names != expected:
            raise UsageError(
                f"{first.path_prefix} gives {', '.join(expected)}, {dataset.path_prefix} "
                f"{', '.join(names)}: set {option('document_boundaries')} or packing for all "
                "in a blend"
            )
        if dataset.group != first.group:
            raise UsageError(
                f"{first.path_prefix} and {dataset.path_prefix}: only one has "
                f"{option('packing', 'pairs')}: set it for all in a blend"
            )
        if dataset.order != first.order:
            raise UsageError(
                f"{first.path_prefix} has the order {first.order}, {dataset.path_prefix} "
                f"{dataset.order}: they must be equal in a blend"
            )
    check_tokenizers((one.path_prefix, one.tokenizer) for one in datasets)

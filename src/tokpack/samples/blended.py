"""Several datasets as one, mixed by weights."""

from __future__ import annotations

import math
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import xxhash

from tokpack import _core
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.gpt import GPTDataset
    from tokpack.samples.iterate import Sample

SMALLEST_SHARE = 1e-15  # the order counts in steps of 2**-64


class BlendedDataset:
    """Samples of several datasets, in shares that are right at every prefix.

    Of the first g samples, dataset i gives ``weights[i] / sum(weights) * g``, with a deviation
    below 1.5; its own samples come in their own order. Which dataset gives sample g is a function
    of the weights and g alone.

    ``datasets`` are GPTDatasets or blends. ``weights`` are positive, in any unit; by default the
    datasets' lengths. ``size`` is the number of samples: a dataset that is read to its end begins
    its next epoch. Without ``size`` the blend ends before any dataset would give more samples than
    its length.

    UsageError for weights or datasets that do not fit, also for datasets of two tokenizers.
    """

    def __init__(
        self,
        datasets: Sequence[GPTDataset | BlendedDataset],
        weights: Sequence[float] | None = None,
        size: int | None = None,
    ) -> None:
        self._datasets = list(datasets)
        if not self._datasets:
            raise UsageError("a blend needs at least one dataset")
        self._check_alike()
        if weights is None:
            weights = [len(dataset) for dataset in self._datasets]
        self._weights = self._normalised([float(weight) for weight in weights])
        self._order = _core.BlendOrder(np.array(self._weights, np.float64))
        if size is not None and size < 1:
            raise UsageError(f"size is {size}, expected 1 or more")
        self._size = self._longest() if size is None else size

    def __len__(self) -> int:
        """Number of samples."""
        return self._size

    def __getitem__(self, index: SupportsIndex) -> Sample:
        number = as_integer(index)
        if not -self._size <= number < self._size:
            raise IndexError(f"sample {number} of a blend of {self._size}")
        return self.sample(number % self._size)

    def sample(self, number: int) -> Sample:
        """Sample ``number`` >= 0, also behind the end."""
        dataset, own = self.locate(number)
        return self._datasets[dataset].sample(own)

    def locate(self, number: int) -> tuple[int, int]:
        """Which dataset gives sample ``number``, and which of its samples that is."""
        return self._order.locate(number)

    def counts(self, size: int) -> list[int]:
        """How many of the first ``size`` samples each dataset gives."""
        return [int(count) for count in self._order.counts(size)]

    @property
    def datasets(self) -> list[GPTDataset | BlendedDataset]:
        """What is blended."""
        return list(self._datasets)

    @property
    def weights(self) -> list[float]:
        """Their shares, which add up to 1."""
        return list(self._weights)

    @property
    def path_prefix(self) -> str:
        """The names of all datasets."""
        return ", ".join(dataset.path_prefix for dataset in self._datasets)

    @property
    def seq_length(self) -> int:
        """Tokens in each sample."""
        return self._datasets[0].seq_length

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of all that decides the tokens of sample g."""
        parts = [(dataset.fingerprint, weight) for dataset, weight in self._pairs()]
        return xxhash.xxh3_128_hexdigest(repr(parts).encode())

    @property
    def tokenizer(self) -> dict[str, Any] | None:
        """What the manifests say of the tokenizer; None where there is no manifest."""
        return next((d.tokenizer for d in self._datasets if d.tokenizer is not None), None)

    def __getstate__(self) -> dict[str, Any]:
        return {"datasets": self._datasets, "weights": self._weights, "size": self._size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._datasets = state["datasets"]
        self._weights = state["weights"]
        self._size = state["size"]
        self._order = _core.BlendOrder(np.array(self._weights, np.float64))

    def __repr__(self) -> str:
        shares = ", ".join(f"{w:.3g} {d.path_prefix}" for d, w in self._pairs())
        return f"BlendedDataset({shares}; {self._size} samples of {self.seq_length})"

    def _pairs(self) -> list[tuple[GPTDataset | BlendedDataset, float]]:
        return list(zip(self._datasets, self._weights, strict=True))

    def _normalised(self, weights: list[float]) -> list[float]:
        if len(weights) != len(self._datasets):
            raise UsageError(
                f"{len(weights)} weights for {len(self._datasets)} datasets: give one for each"
            )
        for dataset, weight in zip(self._datasets, weights, strict=True):
            if not 0 < weight < math.inf:
                raise UsageError(
                    f"{dataset.path_prefix}: the weight is {weight:g}, expected a number above 0: "
                    "leave the dataset out, or give it a share"
                )
        largest = max(weights)
        scaled = [weight / largest for weight in weights]  # their sum cannot overflow
        total = math.fsum(scaled)
        for dataset, weight, share in zip(self._datasets, weights, scaled, strict=True):
            if share / total < SMALLEST_SHARE:
                raise UsageError(
                    f"{dataset.path_prefix}: the weight {weight:g} is a share of "
                    f"{share / total:g}, expected {SMALLEST_SHARE:g} or more: leave it out"
                )
        return [share / total for share in scaled]

    def _check_alike(self) -> None:
        first = self._datasets[0]
        for dataset in self._datasets[1:]:
            if dataset.seq_length != first.seq_length:
                raise UsageError(
                    f"{first.path_prefix} has samples of {first.seq_length} tokens, "
                    f"{dataset.path_prefix} of {dataset.seq_length}: they must be equal in a blend"
                )
        known = [(d.path_prefix, d.tokenizer) for d in self._datasets if d.tokenizer is not None]
        for prefix, tokenizer in known[1:]:
            if tokenizer.get("sha256") != known[0][1].get("sha256"):
                raise UsageError(
                    f"{known[0][0]} has tokens of {_name(known[0][1])}, {prefix} of "
                    f"{_name(tokenizer)}: one model cannot read both; encode one of them again"
                )

    def _longest(self) -> int:
        """The most samples for which no dataset gives more than its length."""
        lengths = np.array([len(dataset) for dataset in self._datasets])
        low, high = 0, int(lengths.sum())  # the shares are right at low, and may be at high
        while low < high:
            middle = (low + high + 1) // 2
            fits = bool(np.all(self._order.counts(middle) <= lengths))
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def _name(tokenizer: dict[str, Any]) -> str:
    return f"{tokenizer.get('name')} (sha256 {str(tokenizer.get('sha256'))[:12]})"

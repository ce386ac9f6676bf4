"""The orders of the Megatron family, equal to what those programs build, array by array.

For continuing or reproducing a run. All counts are whole numbers of 64 bits: where a program's own
count overflows or is rounded, the correct value is used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import FormatError, UsageError, option
from tokpack.samples.megatron.build import build_arrays, build_parts
from tokpack.samples.orders.rows import Order
from tokpack.samples.orders.rules import flavour_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.samples.cache import CacheEntry, IndexCache
    from tokpack.samples.megatron.build import IndexKey
    from tokpack.samples.orders.rows import Counts, Numbers, Rows


_WITHOUT_NEGATIVE_OFFSETS = ("megatron", "megatron-0.10")  # an assertion of these programs


class MegatronOrder(Order):
    """The samples of some sequences, in the order of ``flavour``, of which ``key`` was made.

    - ``document_index`` int32 [epochs * (end - begin)]: sequences, shuffled
    - ``sample_index`` [samples + 1, 2], int32 or int64: position in it, offset in tokens
    - ``shuffle_index`` uint32 or int64 [samples]: the sample that comes k-th

    With a ``cache`` the arrays are mapped from a file in it, built when it is absent.
    UsageError where the program itself would stop.
    """

    def __init__(
        self, key: IndexKey, *, flavour: str = "megatron", cache: IndexCache | None = None
    ) -> None:
        self.flavour = flavour_named(flavour).name
        self._data = key.data
        self._listed: _core.ListedSamples | None = None
        self.tokens = key.data.tokens
        self.cached: CacheEntry | None = None
        if cache is None:
            arrays = build_arrays(key)
        else:
            self.cached = cache.entry("megatron", key.settings, lambda: build_parts(key))
            arrays = self.cached.arrays
        self.document_index: npt.NDArray[np.int32] = arrays["document_index"]
        self.sample_index = arrays["sample_index"]
        self.shuffle_index = arrays["shuffle_index"]
        self.samples = len(self.shuffle_index)  # NeoX says one fewer, and reads the last one too
        if self.flavour in _WITHOUT_NEGATIVE_OFFSETS and int(self.sample_index[-1, 1]) < 0:
            raise UsageError(
                "the last sample ends behind an empty sequence, with which Megatron-core stops: "
                f"use {option('drop_last', True)}, another seed, or a split that ends elsewhere"
            )

    def locate_many(self, samples: Numbers) -> tuple[Rows, Counts]:
        """Where the tokens of samples lie: all rows, and int64 [B], how many each sample has.

        The numbers of tokens of a sample's rows, which can be 0, add up to ``seq_length + 1``, or
        ``seq_length`` without the extra token; to less in a kept last sample. IndexError for a
        sample that does not exist, FormatError where the arrays, which may come from a file, are
        out of range.
        """
        numbers = np.asarray(samples, np.int64)
        if self._listed is None:
            self._listed = _core.ListedSamples(
                self._data.lengths,
                self.document_index,
                self.sample_index,
                self.shuffle_index,
                bool(self._data.extra),
            )
        try:
            return self._listed.locate_many(numbers)
        except ValueError as error:
            raise FormatError(f"the index of the order {self.flavour} is broken: {error}") from None

    def find(self, sequences: range, samples: int) -> Iterator[int]:
        """As of every order, of the samples that there are."""
        return super().find(sequences, min(samples, self.samples))


@dataclass(frozen=True, slots=True)
class BlendRequest:
    """What a blend asks of its datasets.

    ``weights`` float64 [n] are normalised; ``samples`` is how many each dataset is asked for, as
    ``num_samples`` of its MegatronOrder. ``size`` is the blend's own number of samples; None where
    it is all that the datasets came to have.
    """

    weights: npt.NDArray[np.float64]
    samples: list[int]
    size: int | None


def blend_request(
    weights: Sequence[float],
    num_samples: int,
    flavour: str = "megatron",
    *,
    surplus: float = 0.005,
) -> BlendRequest:
    """How ``flavour`` shares ``num_samples`` among datasets with these weights.

    ``surplus`` is Megatron-core's ``mid_level_dataset_surplus``: how much more than its share each
    dataset is asked for. UsageError for weights that are not finite and above zero.
    """
    rules = flavour_named(flavour)
    if num_samples < 0:
        raise UsageError(f"{num_samples} samples: ask for 0 or more")
    shares = normalise(weights)
    if rules.blend_sums_in_python:
        total = sum(weights)  # rounds otherwise than numpy's sum
        shares = normalise([weight / total for weight in weights])
    if rules.blend_size == "targets":
        targets = [int(np.ceil(num_samples * share)) for share in shares]
        counts = [int(np.ceil(target * (1 + surplus))) for target in targets]
        size: int | None = sum(targets)
    else:
        counts = [int(np.ceil(num_samples * share * (1 + surplus))) for share in shares]
        size = sum(counts) if rules.blend_size == "asked" else None
    return BlendRequest(shares, counts, size)


def megatron_blend(
    weights: Sequence[float] | npt.NDArray[np.float64],
    size: int | None,
    flavour: str = "megatron",
    *,
    fused: bool = False,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The dataset of each sample of a blend [size], and the number of the sample in that dataset.

    ``weights`` are those of a BlendRequest, or the datasets' numbers of samples: with ``size`` as
    weights, and without one as limits, each used up exactly. The first array is int16 or uint8, as
    in ``flavour``. ``fused`` gives the order of builds for ARM processors, whose compilers contract
    a multiply and a subtraction, which breaks ties otherwise.
    """
    rules = flavour_named(flavour)
    shares = normalise(weights)
    if len(shares) > rules.blend_datasets:
        raise UsageError(
            f"a blend of {len(shares)} datasets: {flavour} has no more than {rules.blend_datasets}"
        )
    limits: list[int] = []
    if size is None:
        limits = [int(weight) for weight in weights]
        if any(limit != weight for limit, weight in zip(limits, weights, strict=True)):
            raise UsageError("a blend without a size needs the datasets' numbers of samples")
        size = sum(limits)
        shares = np.array(limits, np.float64) / size
    if size < 0:
        raise UsageError(f"a blend of {size} samples: ask for 0 or more")
    datasets, samples = _core.megatron_blend(shares, size, limits=limits, fused=fused)
    return datasets.astype(rules.blend_dtype, copy=False), samples


def normalise(weights: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Weights divided by their sum, as the programs do; UsageError for any that cannot work."""
    values = np.array(weights, np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise UsageError("a blend needs one weight for each dataset, and at least one dataset")
    for place, value in enumerate(values):
        if not 0 < value < np.inf:
            raise UsageError(f"weight {place + 1} is {value}: it must be finite and above zero")
    shares: npt.NDArray[np.float64] = values / np.sum(values)  # the sum rounds as theirs does
    return shares

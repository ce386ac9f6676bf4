"""The rules in which the programs of the Megatron family differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tokpack.errors import UsageError
from tokpack.samples.orders.rules import OrderRules

FlavourName = Literal[
    "megatron",
    "megatron-0.10",
    "megatron-0.9",
    "megatron-0.7",
    "megatron-0.4",
    "neox",
    "bigscience",
    "microsoft",
]


@dataclass(frozen=True, slots=True)
class Flavour(OrderRules):
    """The rules of one program.

    - ``last_epoch_share``: the last epoch is shuffled by itself when the run needs less than this
      share of it; 0 for never
    - ``last_epoch_slack``: how many samples of the last epoch the run may need beyond the number
      that the program computes; with more it stops
    - ``wide``: when the sample index is int64: where a number "needs" it, where it has so many
      "rows", or "always"
    - ``blend_size``: the samples of a blend: the sum of the "targets" of its datasets, of what they
      are "asked" for, or of the "lengths" that they come to have
    - ``blend_sums_in_python``: weights are divided by a sum of Python before that of numpy
    - ``blend_dtype``, ``blend_datasets``: of the dataset index, and how many datasets it can hold
    """

    endless: ClassVar[bool] = False

    last_epoch_share: float
    last_epoch_slack: int
    wide: Literal["needs", "rows", "always"]
    blend_size: Literal["targets", "asked", "lengths"]
    blend_sums_in_python: bool = False
    blend_dtype: Literal["int16", "uint8"] = "int16"
    blend_datasets: int = 2**15 - 2


FLAVOURS: dict[str, Flavour] = {
    flavour.name: flavour
    for flavour in (
        Flavour("megatron", "core", 0.80, 1, "needs", "targets", takes_pad_id=True),
        Flavour("megatron-0.10", "core", 0.80, 1, "needs", "asked", takes_pad_id=True),
        Flavour("megatron-0.9", "core", 0.80, 1, "always", "asked", takes_pad_id=True),
        Flavour("megatron-0.7", "core", 0.80, 1, "needs", "asked", takes_pad_id=True),
        Flavour("megatron-0.4", "classic", 0.80, 1, "needs", "asked", takes_pad_id=True),
        Flavour("neox", "classic", 0, 0, "rows", "lengths", True, "uint8", 254),
        Flavour("bigscience", "classic", 0.95, 0, "needs", "lengths", True, "uint8", 254),
        Flavour("microsoft", "classic", 0.80, 1, "always", "asked", False, "uint8", 254),
    )
}


def flavour_named(name: str) -> Flavour:
    """The rules of the program of that name; UsageError where there is none."""
    try:
        return FLAVOURS[name]
    except KeyError:
        raise UsageError(f"order {name!r} is unknown: use one of {', '.join(FLAVOURS)}") from None

"""How orders and packings differ; no other module tests their names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from tokpack.errors import UsageError

OwnOrderName = Literal["stateless", "stateless-blocks"]


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


OrderName = Literal[OwnOrderName, FlavourName]


PackingName = Literal["none", "best_fit", "document", "pairs", "pack_until_overflow", "unpacked"]


@dataclass(frozen=True, slots=True)
class OrderRules:
    """The rules of an order of tokpack; those of other programs are a Flavour.

    - ``endless``: there is a sample k for every k, whatever number of samples is requested. So
    weights may
      change during a run, nothing is stored without packing, samples are full, and each is in one
      epoch. In the other orders samples depend on their number, the last may be shorter, and a
      sample may continue in the next epoch.
    - ``split_rule``: how a split string is rounded, as in ``parse_split``
    - ``takes_pad_id``: whether tokens equal to ``pad_id`` are masked
    """

    endless: ClassVar[bool] = True

    name: str
    split_rule: Literal["core", "classic"]
    takes_pad_id: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Flavour(OrderRules):
    """The rules of one program of the Megatron family.

    - ``last_epoch_share``: the last epoch is shuffled by itself when the run needs less than this
      share of it; 0 for never
    - ``last_epoch_slack``: how many more samples of the last epoch a run may need than the program
      computes, before it stops
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


ORDERS: dict[str, OrderRules] = {
    **{name: OrderRules(name, "core") for name in get_args(OwnOrderName)},
    **FLAVOURS,
}


@dataclass(frozen=True, slots=True)
class PackingRules:
    """The rules of a packing.

    - ``order``: the order that it goes with; None for any
    - ``one_document``: a sample has one sequence, or a piece of one
    - ``counted``: the number of samples follows from the lengths alone
    - ``needs_samples``: samples depend on their number, which must be given
    - ``group``: this many consecutive samples belong together, beginning at a multiple of it
    """

    order: str | None
    one_document: bool = False
    counted: bool = True
    needs_samples: bool = False
    group: int = 1


PACKINGS: dict[str, PackingRules] = {
    "none": PackingRules(None),
    "best_fit": PackingRules("stateless", counted=False),
    "document": PackingRules("stateless", one_document=True),
    "pairs": PackingRules("stateless", one_document=True, group=2),
    "pack_until_overflow": PackingRules("neox", needs_samples=True),
    "unpacked": PackingRules("neox", needs_samples=True),
}


def rules_of(order: str) -> OrderRules:
    """The rules of the order with that name. UsageError if there is none."""
    try:
        return ORDERS[order]
    except KeyError:
        raise UsageError(f"order {order!r} is unknown: use one of {', '.join(ORDERS)}") from None


def flavour_named(name: str) -> Flavour:
    """The rules of the program with that name. UsageError if there is none."""
    try:
        return FLAVOURS[name]
    except KeyError:
        raise UsageError(f"order {name!r} is unknown: use one of {', '.join(FLAVOURS)}") from None

"""The rules in which orders differ: nobody tests the name of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

OwnOrderName = Literal["stateless", "stateless-blocks"]


@dataclass(frozen=True, slots=True)
class OrderRules:
    """The rules of an order of tokpack; those of other programs are a Flavour.

    - ``endless``: there is a sample k for every k, and it is the same whatever number of samples is
      asked for. So weights may change on the way, nothing is stored without packing, samples are
      whole, and each lies in one epoch. In the others the number of samples decides them, there
      may be a shorter last one, and a sample may go on in the next epoch.
    - ``split_rule``: how a split string is rounded, as in ``parse_split``
    - ``takes_pad_id``: whether tokens equal to ``pad_id`` are masked
    """

    endless: ClassVar[bool] = True

    name: str
    split_rule: Literal["core", "classic"]
    takes_pad_id: bool = field(default=False, kw_only=True)


OWN_ORDERS = {name: OrderRules(name, "core") for name in get_args(OwnOrderName)}

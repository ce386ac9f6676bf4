"""The tokens of sample k: the stateless order, packings, and orders by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.face import face

if TYPE_CHECKING:
    from tokpack.samples.orders.by_name import make_order as make_order
    from tokpack.samples.orders.packing import PackingStats as PackingStats
    from tokpack.samples.orders.packing import pairs_in as pairs_in
    from tokpack.samples.orders.rows import Counts as Counts
    from tokpack.samples.orders.rows import Numbers as Numbers
    from tokpack.samples.orders.rows import Order as Order
    from tokpack.samples.orders.rows import OrderInput as OrderInput
    from tokpack.samples.orders.rows import Rows as Rows
    from tokpack.samples.orders.rules import ORDERS as ORDERS
    from tokpack.samples.orders.rules import PACKINGS as PACKINGS
    from tokpack.samples.orders.rules import OrderName as OrderName
    from tokpack.samples.orders.rules import OrderRules as OrderRules
    from tokpack.samples.orders.rules import PackingName as PackingName
    from tokpack.samples.orders.rules import PackingRules as PackingRules
    from tokpack.samples.orders.rules import flavour_named as flavour_named
    from tokpack.samples.orders.rules import rules_of as rules_of

__getattr__, __all__ = face(
    __name__,
    {
        "by_name": "make_order",
        "packing": "PackingStats pairs_in",
        "rows": "Order OrderInput",
        "rules": (
            "ORDERS PACKINGS OrderName OrderRules PackingName PackingRules flavour_named rules_of"
        ),
    },
)

"""The committed values of the orders."""

from __future__ import annotations

from support.places import GOLDEN

# Values that must never change: the core's own test reads them too, on other machines.
ORDERS = GOLDEN / "orders.txt"


def golden(what: str) -> list[tuple[list[str], int, list[int]]]:
    """The words, the begin and the values of every line about ``what``."""
    found = []
    for line in ORDERS.read_text().splitlines():
        name, _, rest = line.partition(" ")
        if name == what:
            given, _, values = rest.partition("=")
            words, _, begin = given.partition("@")
            found.append((words.split(), int(begin or 0), [int(v) for v in values.split()]))
    assert found
    return found

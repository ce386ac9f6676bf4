"""JSON of ours with odd values in it: what a reader must refuse by name, or take."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

ODD = [
    *(None, True, -1, 0, 1, 10**18, 2**63, 10**30, 0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "1", "../x", "\0", "\ud800", [], [1], ["x"], {}, {"x": 1}),
]
REMOVED = object()
EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from([*ODD, REMOVED])), min_size=1, max_size=3
)


def edited(value: Any, edits: list[tuple[int, Any]]) -> Any:
    """A copy of ``value`` in which each edit replaces or removes what is at a place in it."""
    value = copy.deepcopy(value)
    for number, new in edits:
        places = list(_places(value))
        if not places:
            break
        inner, key = places[number % len(places)]
        if new is REMOVED:
            del inner[key]
        else:
            inner[key] = copy.deepcopy(new)
    return value


def _places(value: Any) -> Any:
    keys = value if isinstance(value, dict) else range(len(value)) if type(value) is list else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])

"""JSON documents that are valid but for one unexpected value, in every place in turn."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokpackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ESCAPES = "\x1b]0;x\x07\x1b[2J\x9b31m\x7f\u202e\r\n\udc9b"
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 2**64, 10**59, 0.5, float("nan"), float("inf"), -1e308),
    *("", "a", "a\0b", "../x", "\ud800", ESCAPES, "y" * 100_000, [], {}, [[]], [None], [{}]),
    *({"": None}, {"a": {"a": []}}, ["a", "b"], [0, 0]),
)
_FIRST = 4  # keys of an object, and elements of a list, that are replaced


def edited(right: Any) -> Iterator[tuple[str, Any]]:
    """The place, and the document with another value there, or without it."""
    for path in list(_places(right)):
        for new in VALUES:
            document = copy.deepcopy(right)
            if not path:
                yield f"all is {new!r:.40}", new
                continue
            node = document
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = copy.deepcopy(new)
            yield f"{path} is {new!r:.40}", document
        if path and isinstance(path[-1], str):
            document = copy.deepcopy(right)
            node = document
            for key in path[:-1]:
                node = node[key]
            del node[path[-1]]
            yield f"no {path}", document


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(node, dict):
        keys = list(node) if len(node) < 40 else list(node)[:_FIRST]
        for key in keys:
            yield from _places(node[key], (*path, key))
    elif isinstance(node, list):
        for number in range(min(len(node), _FIRST)):
            yield from _places(node[number], (*path, number))


def refused_well(action: Callable[[], object]) -> bool:
    """Return whether an action raises a tokpack error; any other exception fails the test."""
    try:
        action()
    except TokpackError as error:
        text = str(error)
    else:
        return False
    assert len(text) <= 4000, f"a message of {len(text)} characters"
    return True

"""The trainer's entry points: all that the rest of tokpack knows about it.

It is installed with tokpack, but imported only on use. pyproject.toml lists its entry points:
commands, and functions with the same names in ``tokpack``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

FUNCTIONS, COMMANDS = "tokpack.trainer", "tokpack.commands"


@cache
def entry_point(name: str, group: str = FUNCTIONS) -> Any:
    """The object of the trainer with a name in a group. KeyError if there is none."""
    from importlib.metadata import distribution  # slow to load

    return distribution("tokpack").entry_points.select(group=group)[name].load()

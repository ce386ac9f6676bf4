"""The trainer, of which the rest of tokpack knows the entry points alone.

It is installed with tokpack, and nothing of it is imported before it is asked for. pyproject.toml
lists what it gives: commands, and functions that have the same names in ``tokpack``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

FUNCTIONS, COMMANDS = "tokpack.trainer", "tokpack.commands"


@cache
def entry_point(name: str, group: str = FUNCTIONS) -> Any:
    """What the trainer gives under a name of a group. KeyError where it gives nothing."""
    from importlib.metadata import distribution  # which loads much

    return distribution("tokpack").entry_points.select(group=group)[name].load()

"""Packages that processes of the tests cannot import, as if they were not installed."""

from __future__ import annotations

import os
from importlib.machinery import PathFinder


def hide_packages() -> None:
    """Hide those that TOKPACK_TESTS_WITHOUT names, such as torch,ray, from this process."""
    names = os.environ.get("TOKPACK_TESTS_WITHOUT", "").split(",")
    find_spec = PathFinder.find_spec
    PathFinder.find_spec = lambda name, *more: None if name in names else find_spec(name, *more)

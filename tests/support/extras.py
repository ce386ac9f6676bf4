"""Packages that only other processes of a test import."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need(package: str) -> None:
    """Skip the module, or the test, where a package is not installed; it is not imported here."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

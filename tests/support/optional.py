"""What tests use only where it is there: programs, real data, the rights of root.

A test asks for it by a fixture or a mark, so that it is skipped before it has begun anything. With
TOKPACK_TESTS_BARE=1 none of it is there, as on a fresh machine; TOKPACK_TESTS_WITHOUT
names packages that cannot be imported.
"""

from __future__ import annotations

import os
import shutil

import pytest

from support.places import ROOT
from support.without import hide_packages

hide_packages()

BARE = os.environ.get("TOKPACK_TESTS_BARE") == "1"
# Real corpora, tokenizers and datasets.
SHARED = ROOT.parent / "shared" / "data" if not BARE else ROOT / "hidden"

needs_root = pytest.mark.skipif(BARE or os.geteuid() != 0, reason="only root may do this")


def program(*names: str) -> str | None:
    """The path of the first of these programs that is there."""
    return None if BARE else next(filter(None, map(shutil.which, names)), None)


def needs_program(name: str) -> pytest.MarkDecorator:
    """A mark that skips a test where this program is absent."""
    reason = f"no {name} here: apt-get install {name}"
    return pytest.mark.skipif(program(name) is None, reason=reason)

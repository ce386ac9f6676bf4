"""What all tests share: the folder of real data beside the repository."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from support.places import SHARED

if TYPE_CHECKING:
    from pathlib import Path

# Whoever starts the tests in the background lets them ignore Ctrl-C, and so the commands that tests
# start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that judges a change must judge it alike every time; people's runs go on exploring.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora, tokenizers and datasets; skips the test where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no real data here: the folder shared/data beside the repository is absent")
    return SHARED

"""What all tests share: the folder of real data beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora, tokenizers and datasets; skips the test where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no real data here: the folder shared/data beside the repository is absent")
    return SHARED

"""What many tests of the trainer share."""

from __future__ import annotations

import pytest
from support.script_tools import Place, make_place


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """What the example scripts train on."""
    return make_place(tmp_path_factory.mktemp("data"))

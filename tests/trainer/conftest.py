"""What many tests of the trainer share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.script_tools import Place, make_place

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """What the example scripts train on."""
    return make_place(tmp_path_factory.mktemp("data"))


@pytest.fixture
def float64() -> Iterator[None]:
    """Sums in another order agree there to support.rounding.EXACT, whatever the processor."""
    from support.trainer_model_tools import float64

    with float64():
        yield

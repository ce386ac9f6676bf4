"""What many tests of the trainer share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from support.script_tools import Place, make_place
from support.trainer_tools import write_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Other threads of torch gain nothing beside the other workers of pytest, and sum otherwise."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """What the example scripts train on."""
    return make_place(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of a small vocabulary, without a manifest."""
    return write_tokens(tmp_path_factory.mktemp("tokens") / "corpus")


@pytest.fixture
def float64() -> Iterator[None]:
    """Sums in another order agree there to support.rounding.EXACT, whatever the processor."""
    from support.trainer_model_tools import float64

    with float64():
        yield

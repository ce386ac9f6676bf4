"""A dataset of several kinds of texts, which most tests here only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.report_tools import make, sample_texts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the dataset and of its tokenizer.json."""
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="session")
def prefix(folder: Path) -> str:
    return make(folder, "data", sample_texts())

"""A place for runs that are stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import byte_tokenizer
from support.stopped_runs import Place

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def place(tmp_path: Path, tokenizer: Path, kept: Path) -> Place:
    return Place(tmp_path, tokenizer, kept)

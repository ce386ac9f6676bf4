"""A small tokenizer and a corpus of three documents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.cli_tools import TEXTS
from support.encoding_tools import byte_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level BPE with an end-of-text token."""
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": t, "title": t[:9]}) + "\n" for t in TEXTS))
    return path

"""The two tokenizers that most texts are tried on, each beside the Hugging Face library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.tokenizers_twin import Twin

from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches, and nothing that is downloaded into them."""
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "tiktoken"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def gpt2(data: Path) -> Twin:
    folder = data / "tokenizers"
    return Twin(
        load_tokenizer(vocab_file=folder / "gpt2-vocab.json", merge_file=folder / "gpt2-merges.txt")
    )


@pytest.fixture(scope="session")
def neox(data: Path) -> Twin:
    return Twin(load_tokenizer(data / "tokenizers" / "20B_tokenizer.json"))

"""Trained tokens of a document are told from the others, on a terminal and on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import byte_tokenizer
from support.report_tools import run, run_json

from tokpack import MMapIndexedDatasetBuilder, load_tokenizer
from tokpack.view.items import DatasetItem
from tokpack.view.tokens import token_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def chat(tmp_path: Path) -> tuple[str, str]:
    """A dataset of one conversation whose last three tokens are trained, and its tokenizer."""
    tokenizer = tmp_path / "tokenizer.json"
    byte_tokenizer(tokenizer)
    ids = load_tokenizer(tokenizer).encode("hi\nyes")
    prefix = str(tmp_path / "chat")
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", "uint16", tracks=["mask"]) as builder:
        builder.add_item(ids, mask=[0, 0, 0, 1, 1, 1])
        builder.finalize(f"{prefix}.idx")
    return prefix, str(tokenizer)


def test_inspect_marks_trained_tokens(chat: tuple[str, str]) -> None:
    prefix, tokenizer = chat
    said = run("inspect", prefix, "--doc", 0, "--tokenizer", tokenizer)
    head, *rows = said.stdout.splitlines()
    assert "6 tokens, 3 of them trained (marked *)" in head
    ids = [word for row in rows[1::2] for word in row.split()]
    assert [word.endswith("*") for word in ids] == [False] * 3 + [True] * 3
    assert "was made with" not in said.stderr


def test_a_page_marks_trained_tokens(chat: tuple[str, str]) -> None:
    prefix, tokenizer = chat
    item = DatasetItem(prefix, {"tokenizer": tokenizer})
    ids, mask = item.dataset.document(0).tolist(), [0, 0, 0, 1, 1, 1]
    page = str(token_text(ids, item.spelling, 0, with_ids=False, trained=mask))
    assert page.count(' trained" title=') == page.count(", trained") == 3
    assert page.count(' context" title=') == page.count(", not trained") == 3
    assert ", trained" not in str(token_text(ids, item.spelling, 0, with_ids=False))


def test_stats_count_trained_tokens(chat: tuple[str, str]) -> None:
    prefix, tokenizer = chat
    rows = run("stats", prefix, "--tokenizer", tokenizer).stdout
    assert "trained tokens              3 (50.0%)" in rows
    assert run_json("stats", prefix)["datasets"][0]["trained"] == 3

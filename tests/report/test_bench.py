"""``tokpack bench``: libraries measured side by side, ids compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import byte_tokenizer, documents, write_jsonl
from support.report_tools import run, run_json

from tokpack.look import tokenizers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command, on a text with a tokenizer whose ids are in the order of its merges."""
    monkeypatch.setattr(tokenizers, "_RUNS", 1)
    byte_tokenizer(tmp_path / "tokenizer.json")
    texts = write_jsonl(tmp_path / "a.jsonl", documents(60))
    return ["bench", str(texts), "--tokenizer", str(tmp_path / "tokenizer.json")]


def test_libraries_give_the_same_ids(words: list[str]) -> None:
    found = run_json(*words, "--libraries", "tokenizers", "transformers")
    assert [one["library"] for one in found["libraries"]] == [
        "tokpack",
        "tokenizers",
        "transformers",
    ]
    for one in found["libraries"]:
        assert one["same_ids"]
        assert one["construction"] > 0
        assert one["first"] > 0
        assert one["later"] == 0  # there is no text behind the first 10 MB
        assert one["version"]
    assert found["documents"] > 50


def test_tiktoken_cuts_and_merges_the_same(words: list[str]) -> None:
    pytest.importorskip("tiktoken")
    _, tiktoken = run_json(*words, "--libraries", "tiktoken")["libraries"]
    assert tiktoken["same_ids"]


def test_what_cannot_be_measured_is_said(words: list[str]) -> None:
    said = run(*words, "--libraries", "snaptokens", "tokenizers").stdout
    assert "snaptokens: not measured: " in said
    assert "the same" in said
    assert "not a library that bench knows" in run(*words, "--libraries", "spam", code=1).stderr


def test_ids_of_a_reference_that_differ_are_a_fault(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = tokenizers._measured

    def wrong(name: str, work: Path, size: int) -> dict[str, object]:
        return measure(name, work, size) | ({"ids": "others"} if name == "tokenizers" else {})

    monkeypatch.setattr(tokenizers, "_measured", wrong)
    assert "different" in run(*words, "--libraries", "tokenizers", code=1).stdout

"""``tokpack bench``: libraries measured side by side, ids compared, a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import byte_tokenizer, documents, write_jsonl
from support.report_tools import run, run_json

from tokpack.look.plots import bars

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command, on a text with a tokenizer whose ids are in the order of its merges."""
    byte_tokenizer(tmp_path / "tokenizer.json")
    texts = write_jsonl(tmp_path / "a.jsonl", documents(60))
    return ["bench", str(texts), "--tokenizer", str(tmp_path / "tokenizer.json"), "--runs", "1"]


def test_libraries_give_the_same_ids(words: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "speed.svg"
    found = run_json(*words, "--libraries", "tokenizers", "transformers", "--chart", str(picture))
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
    texts = [node.text for node in ET.parse(picture).iter() if node.tag.endswith("text")]
    assert {"tokpack", "tokenizers", "transformers"} <= set(texts)


def test_tiktoken_cuts_and_merges_the_same(words: list[str]) -> None:
    pytest.importorskip("tiktoken")
    _, tiktoken = run_json(*words, "--libraries", "tiktoken")["libraries"]
    assert tiktoken["same_ids"]


def test_what_cannot_be_measured_is_said(words: list[str]) -> None:
    said = run(*words, "--libraries", "snaptokens", "tokenizers").stdout
    assert "snaptokens: not measured: " in said
    assert "the same" in said
    assert "no library that is measured" in run(*words, "--libraries", "spam", code=1).stderr


def test_ids_of_a_reference_that_differ_are_a_fault(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokpack.look import bench

    measure = bench._measure

    def wrong(name: str, work: Path, size: int) -> dict[str, object]:
        return measure(name, work, size) | ({"ids": "others"} if name == "tokenizers" else {})

    monkeypatch.setattr(bench, "_measure", wrong)
    assert "others" in run(*words, "--libraries", "tokenizers", code=1).stdout


def test_bars_are_as_long_as_their_values() -> None:
    root = ET.fromstring(bars([("a <title>", {"slow": 1.0, "tokpack": 4.0}), ("none", {})]))
    widths = [int(node.attrib["width"]) for node in root if node.tag.endswith("rect")]
    assert widths[0] == 4 * widths[1]
    names = [node.text for node in root if node.tag.endswith("text")]
    assert names[:2] == ["a <title>", "tokpack"]

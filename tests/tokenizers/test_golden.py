"""Made-up documents have the ids that Hugging Face's tokenizers gave when they were made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.places import GOLDEN
from support.tokenizers_twin import LEVELS, Twin

import tokpack
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = GOLDEN / "documents"
NAMES = ["gpt2", "neox"]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", LEVELS)
def test_documents_have_the_stored_ids(name: str, level: str, expected: dict[str, Any]) -> None:
    lines = (FOLDER / "documents.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    texts = [json.loads(line)["text"] for line in lines]
    twin = Twin(load_tokenizer(FOLDER / f"{name}.json"))
    assert twin.native(texts, "encode", level) == expected[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_of_them(name: str, expected: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = str(FOLDER / f"{name}.json")
    tokpack.encode(
        str(FOLDER / "documents.jsonl"),
        str(tmp_path / "out"),
        tokenizer=tokenizer,
        special_tokens="encode",
    )
    dataset = tokpack.MMapIndexedDataset(tmp_path / "out")
    eod = load_tokenizer(tokenizer).eod_id
    wanted = [[*ids, eod] for ids in expected[name] if ids]
    assert [dataset[i].tolist() for i in range(len(dataset))] == wanted

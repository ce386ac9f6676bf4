"""Keys inside objects, and what a manifest looks like."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import tokpack

if TYPE_CHECKING:
    from pathlib import Path


def lines(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_nested_keys(tmp_path: Path, bpe: Path) -> None:
    """A key of the literal name comes first; what is not there is not found on the way."""
    path = lines(
        tmp_path / "a.jsonl",
        {"meta": {"text": "inside", "deep": {"er": "deep"}}},
        {"meta": {"text": "inside"}, "meta.text": "literal"},
    )
    manifest = tokpack.encode(
        [path], tmp_path / "x", keys="meta.text", tokenizer=str(bpe), workers=1
    )
    dataset = tokpack.MMapIndexedDataset(tmp_path / "x")
    tokenizer = tokpack.load_tokenizer(str(bpe))
    texts = [tokenizer.decode_bytes(dataset[i][:-1].tolist()) for i in range(len(dataset))]
    assert texts == [b"inside", b"literal"]
    assert manifest.documents == 2


def test_a_manifest_is_short_to_look_at(tmp_path: Path, bpe: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"})
    manifest = tokpack.encode(path, tmp_path / "out", tokenizer=bpe, workers=1)  # type: ignore[arg-type]
    counts = f"2 documents, {manifest.tokens} tokens as uint16, tokenizer {bpe}"
    assert repr([manifest]) == f"[<Manifest: {counts}>]"

"""What encode says of inputs, keys and outputs that are not what was meant."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import tokpack
from tokpack.errors import InputError, OutputError, RecordError

if TYPE_CHECKING:
    from pathlib import Path


def lines(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({}, "it reads {here}/a.jsonl where this run reads {here}/b.jsonl"),
        ({"keys": "title"}, "it reads"),
        ({"inputs": "a.jsonl", "keys": "title"}, "--json-keys = ['text'], this run has ['title']"),
        ({"inputs": "a.jsonl", "append_eod": False}, "--append-eod = True, this run has False"),
        ({"inputs": "a.jsonl", "limit": 5}, "it has --limit = None, this run has 5"),
        ({"inputs": "a.jsonl", "trace": True}, "it has --trace = False, this run has True"),
        ({"inputs": "a.jsonl", "tokenizer": "other.json"}, "it uses the tokenizer {here}/"),
    ],
)
def test_another_dataset_of_the_name(
    tmp_path: Path, bpe: Path, changed: dict[str, Any], difference: str
) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(bpe.read_bytes())
    other = json.loads(bpe.read_text())
    other["model"]["merges"].pop()
    (tmp_path / "other.json").write_text(json.dumps(other))
    lines(tmp_path / "a.jsonl", {"text": "one", "title": "two"})
    lines(tmp_path / "b.jsonl", {"text": "three", "title": "four"})
    output = tmp_path / "out"
    tokpack.encode([tmp_path / "a.jsonl"], output, tokenizer=str(tokenizer), workers=1)
    options = {"inputs": "b.jsonl", "tokenizer": "tokenizer.json", **changed}
    options |= {name: str(tmp_path / options[name]) for name in ("inputs", "tokenizer")}
    with pytest.raises(OutputError) as caught:
        tokpack.encode(output=output, workers=1, **options)
    assert f"{output}.bin exists and is another dataset (" in str(caught.value)
    assert difference.format(here=tmp_path) in str(caught.value)


def test_what_is_no_dataset_of_ours_merely_exists(tmp_path: Path, bpe: Path) -> None:
    lines(tmp_path / "a.jsonl", {"text": "one"})
    (tmp_path / "out.bin").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"out\.bin exists: choose another output"):
        tokpack.encode([tmp_path / "a.jsonl"], tmp_path / "out", tokenizer=str(bpe), workers=1)


def test_an_empty_file_is_named(tmp_path: Path, bpe: Path) -> None:
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(InputError, match=r"none\.jsonl: empty"):
        tokpack.encode([tmp_path / "none.jsonl"], tmp_path / "out", tokenizer=str(bpe), workers=1)
    lines(tmp_path / "blank.jsonl", {"text": ""})
    inputs = [tmp_path / "blank.jsonl", tmp_path / "none.jsonl"]
    with pytest.raises(InputError, match=r"blank\.jsonl and 1 more: no document with a token"):
        tokpack.encode(inputs, tmp_path / "out", tokenizer=str(bpe), workers=1)


def refusal(path: Path, bpe: Path, **options: Any) -> RecordError:
    with pytest.raises(RecordError) as caught:
        tokpack.encode([path], path.parent / "out", tokenizer=str(bpe), workers=1, **options)
    return caught.value


def test_a_missing_key_is_advised_with_the_keys_there_are(tmp_path: Path, bpe: Path) -> None:
    body = {"id": 1, "body": "one"}
    error = refusal(lines(tmp_path / "all.jsonl", body, body), bpe)
    assert (error.line, error.reason) == (1, "no key 'text'")
    assert "its keys are 'id', 'body'" in error.advice
    assert "--json-keys" in error.advice
    assert "skip" not in error.advice
    error = refusal(lines(tmp_path / "some.jsonl", {"text": "one"}, body), bpe)
    assert (error.line, "--on-error skip" in error.advice) == (2, True)
    error = refusal(lines(tmp_path / "many.jsonl", {str(i): i for i in range(40)}), bpe)
    assert "'11' and 28 more" in error.advice
    error = refusal(lines(tmp_path / "none.jsonl", {}), bpe)
    assert "its keys are none" in error.advice


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
    assert refusal(path, bpe, keys=["meta.deep.er"]).line == 2
    assert refusal(path, bpe, keys=["meta.text.more"]).reason == "no key 'meta.text.more'"
    object_ = refusal(path, bpe, keys=["meta.deep"])
    assert object_.reason == "'meta.deep' is an object, not a string"
    assert object_.advice.startswith("its keys are 'meta.deep.er': name one with --json-keys")
    mistyped = refusal(path, bpe, keys=["meta.txt"])
    assert mistyped.advice.startswith("its keys are 'meta.text', 'meta.deep': name one")


def test_a_manifest_is_short_to_look_at(tmp_path: Path, bpe: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"})
    manifest = tokpack.encode(path, tmp_path / "out", tokenizer=bpe, workers=1)  # type: ignore[arg-type]
    counts = f"2 documents, {manifest.tokens} tokens as uint16, tokenizer {bpe}"
    assert repr([manifest]) == f"[<Manifest: {counts}>]"

"""Datasets of other programs that get a manifest and a table."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.encoding_tools import write_jsonl
from support.faults import flip
from support.report_tools import make, run, run_json, sample_texts
from support.table_tools import token_digest

import tokpack
from tokpack.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path


def stranger(folder: Path, texts: list[str], **options: Any) -> str:
    """A dataset as another program leaves it: without manifest and table."""
    prefix = make(folder, "made", texts, **options)
    (folder / "made.json").unlink()
    return prefix


def test_it_becomes_a_dataset_like_any_other(tmp_path: Path) -> None:
    texts = sample_texts()
    prefix = stranger(tmp_path, texts)
    before = [(tmp_path / f"made.{kind}").read_bytes() for kind in ("bin", "idx")]
    manifest = tokpack.adopt(prefix, tokenizer=tmp_path / "tokenizer.json")
    assert [(tmp_path / f"made.{kind}").read_bytes() for kind in ("bin", "idx")] == before
    assert manifest.documents == manifest.records == len(texts)
    assert manifest.options["append_eod"] is True
    report = tokpack.verify(prefix)
    assert set(report.checked) >= {"index", "counts", "checksums", "token ids", "EOD"}
    dataset = tokpack.MMapIndexedDataset(prefix)
    assert [dataset.text(number) for number in range(len(texts))] == texts
    documents = [dataset.document(number).tolist() for number in range(len(texts))]
    rows = dataset.table().to_pydict()
    assert rows["source"] == ["made"] * len(texts)
    assert rows["line"] == list(range(1, len(texts) + 1))
    assert rows["tokens"] == [len(one) for one in documents]
    assert rows["tokens_xxh3"] == [token_digest(one) for one in documents]
    assert rows["bytes"] == rows["text_xxh3"] == [None] * len(texts)
    assert run("trace", prefix, "--doc", "2").stdout.split()[-1].endswith("made:3")


@pytest.mark.parametrize("files", [1, 2])
def test_a_dataset_of_tokpack_gets_a_table(tmp_path: Path, files: int) -> None:
    pytest.importorskip("duckdb")
    texts = sample_texts()
    make(tmp_path, "for_its_tokenizer", ["a"])
    inputs = [write_jsonl(tmp_path / f"{n}.jsonl", ["", *texts[n::3]]) for n in range(3)]
    options: dict[str, Any] = {"tokenizer": tmp_path / "tokenizer.json", "files": files}
    whole = tokpack.encode(inputs, tmp_path / "whole", trace=True, **options)
    before = tokpack.encode(inputs, tmp_path / "d", **options)
    made = tokpack.adopt(tmp_path / "d")
    assert (made.bin, made.idx, made.inputs) == (before.bin, before.idx, list(before.inputs))
    assert tokpack.verify(tmp_path / "d").documents == len(texts)
    wanted = ["source", "tokens", "tokens_xxh3"]
    table = tokpack.MMapIndexedDataset(tmp_path / "d").table()
    assert table.select(wanted).equals(
        tokpack.MMapIndexedDataset(tmp_path / "whole").table().select(wanted)
    )
    assert table["line"].null_count == table["bytes"].null_count == len(texts)
    origins = tokpack.dataset.Origins(tmp_path / "d")
    assert [str(one) for one in origins][:: len(texts) - 1] == [str(inputs[0]), str(inputs[2])]
    tokpack.select(tmp_path / "d", tmp_path / "view", where="tokens > 9")
    assert whole.documents == made.documents


def test_tokens_that_have_changed_get_no_table(tmp_path: Path) -> None:
    prefix = make(tmp_path, "d", sample_texts())
    flip(tmp_path / "d.bin", -3)
    with pytest.raises(FormatError, match=r"d\.bin"):
        tokpack.adopt(prefix)
    assert not (tmp_path / "d.docs.parquet").exists()


def test_the_first_document_is_shown(tmp_path: Path) -> None:
    prefix = stranger(tmp_path, ["A first document.", "Another."])
    said = run("adopt", prefix, "--tokenizer", tmp_path / "tokenizer.json").stderr
    assert "its first document begins: A first document." in said


def test_other_commands_take_it(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    texts = sample_texts()
    prefix = stranger(tmp_path, texts)
    tokpack.adopt(prefix, tokenizer=tmp_path / "tokenizer.json")
    own = make(tmp_path, "own", texts)
    merged = tokpack.merge([prefix, own], tmp_path / "both")
    assert merged.tokenizer["sha256"]
    assert tokpack.verify(tmp_path / "both").documents == 2 * len(texts)
    tokpack.select([prefix], tmp_path / "short", where="tokens < 20 and line > 1")
    short = tokpack.MMapIndexedDataset(tmp_path / "short")
    assert 0 < short.documents < len(texts)
    assert all(len(row) < 20 for row in short)
    tokpack.dedup([prefix], tmp_path / "clean")
    assert tokpack.MMapIndexedDataset(tmp_path / "clean").documents == len(set(texts))


def test_empty_documents_and_no_eod(tmp_path: Path) -> None:
    prefix = str(tmp_path / "d")
    make(tmp_path, "for_its_tokenizer", ["a"])
    with tokpack.MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32) as builder:
        for row in ([65, 66], [], [67]):
            builder.add_item(row)
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
    manifest = tokpack.adopt(prefix, tokenizer=tmp_path / "tokenizer.json")
    assert (manifest.records, manifest.documents, manifest.empty) == (3, 2, 1)
    assert manifest.options["append_eod"] is False
    assert tokpack.verify(prefix).documents == 3
    assert tokpack.MMapIndexedDataset(prefix).table(["tokens"])["tokens"].to_pylist() == [2, 0, 1]


def test_what_the_tokenizer_did_not_make_is_refused(tmp_path: Path) -> None:
    prefix = stranger(tmp_path, ["one", "two", "three"])
    tokenizer = tmp_path / "tokenizer.json"
    ids = np.fromfile(f"{prefix}.bin", np.uint16)
    broken = ids.copy()
    broken[-1] = 65
    broken.tofile(f"{prefix}.bin")
    with pytest.raises(FormatError, match=r"document 2.*append_eod"):
        tokpack.adopt(prefix, tokenizer=tokenizer)
    assert "--no-append-eod" in run("adopt", prefix, "--tokenizer", tokenizer, code=1).stderr
    broken[1] = 60_000
    broken.tofile(f"{prefix}.bin")
    with pytest.raises(FormatError, match=r"document 0, token 1: .*\b60000, .*\b299\b"):
        tokpack.adopt(prefix, tokenizer=tokenizer, append_eod=False)
    assert not (tmp_path / "made.json").exists()
    assert not (tmp_path / "made.docs.parquet").exists()
    ids.tofile(f"{prefix}.bin")
    assert run_json("adopt", prefix, "--tokenizer", tokenizer)["datasets"][0]["documents"] == 3


def test_a_dataset_of_megatron(shared: Path, tmp_path: Path) -> None:
    name = "meg-gpt2-openwebtext_text_document"
    for kind in ("bin", "idx"):
        shutil.copy(shared / "megatron" / f"{name}.{kind}", tmp_path)
    words = [shared / "megatron" / f"gpt2-tiny-{one}" for one in ("vocab.json", "merges.txt")]
    said = run("adopt", tmp_path / name, "--vocab-file", words[0], "--merge-file", words[1])
    assert said.stdout.strip() == str(tmp_path / name)
    manifest = json.loads((tmp_path / f"{name}.json").read_text())
    assert manifest["options"]["append_eod"] is True
    assert tokpack.verify(tmp_path / name).documents == 1000
    dataset = tokpack.MMapIndexedDataset(tmp_path / name)
    assert dataset.tokenizer is not None
    again = dataset.tokenizer.encode(dataset.text(7))
    assert again == dataset.document(7)[:-1].tolist()

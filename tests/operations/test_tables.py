"""Tables of documents of what merge, split and convert write, against plain lists of rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
from support.table_tools import make_with_table, table_is_gone, token_digest

import tokpack
from tokpack.dataset import MMapIndexedDataset, Origins, table, table_path
from tokpack.documents.write import write_view
from tokpack.storage import near

if TYPE_CHECKING:
    from pathlib import Path

DRAW = np.random.default_rng(8)
DOCUMENTS = [DRAW.integers(0, 60_000, size).tolist() for size in DRAW.integers(1, 9, 40)]
KEPT: dict[str, dict[str, list[Any]]] = {
    "a": {
        "id": [f"a{n}" for n in range(15)],
        "n": [*range(14), None],
        "x": [n / 4 for n in range(15)],
    },
    "b": {"n": [n + 0.5 for n in range(15)], "x": [f"x{n}" for n in range(15)], "id": [None] * 15},
    "c": {"n": [None] * 10, "flag": [True, None] * 5},
}
BOUNDS = {"a": (0, 15), "b": (15, 30), "c": (30, 40)}
KINDS = {"id": "string", "n": "double", "x": "string", "flag": "bool"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tokpack.dataset.merge.ROW_GROUP", 4)
    monkeypatch.setattr(table, "ROW_GROUP", 8)
    for name, (begin, end) in BOUNDS.items():
        kept = {
            key: values if any(values) else pa.nulls(len(values), pa.string())
            for key, values in KEPT[name].items()
        }
        make_with_table(tmp_path / name, DOCUMENTS[begin:end], **kept)
    return tmp_path


def expected() -> list[dict[str, Any]]:
    """The rows of all three datasets as one: values of ``x`` beside strings are JSON texts."""
    rows = []
    for name, (begin, end) in BOUNDS.items():
        for number in range(end - begin):
            values = {key: KEPT[name].get(key, [None] * 15)[number] for key in KINDS}
            if name == "a":
                values["x"] = json.dumps(values["x"])
            document = DOCUMENTS[begin + number]
            digest = token_digest(document)
            own = {"source": "in.jsonl", "line": number + 1, "bytes": len(document)}
            own |= {"tokens": len(document), "text_xxh3": digest, "tokens_xxh3": digest}
            rows.append({**own, **values})
    return rows


def rows(prefix: Path | str) -> list[dict[str, Any]]:
    """The rows of a dataset that is whole, and whose table is of its documents."""
    tokpack.verify(prefix)
    found: list[dict[str, Any]] = pq.read_table(near(table_path(prefix))).to_pylist()
    documents = [one.tolist() for one in MMapIndexedDataset(prefix)]
    assert [row["tokens_xxh3"] for row in found] == list(map(token_digest, documents))
    assert len(Origins(prefix)) == len(found)
    return found


def test_merged_tables(folder: Path) -> None:
    tokpack.merge(["a", "b", "c"], "all")
    assert rows("all") == expected()
    types = {one.name: str(one.type) for one in pq.read_schema(table_path("all"))}
    assert {name: types[name] for name in KINDS} == KINDS
    # However the rows came there, and whatever the datasets were cut into, the bytes are the same.
    tokpack.merge(["a", "b"], "ab", virtual=True)
    tokpack.merge(["ab", "c"], "again")
    whole = (folder / "all.docs.parquet").read_bytes()
    assert (folder / "again.docs.parquet").read_bytes() == whole
    tokpack.split("all", "part", parts=3)
    parts = [f"part_{number:05d}" for number in range(3)]
    assert [row for part in parts for row in rows(part)] == expected()
    tokpack.merge(parts, "joined")
    assert (folder / "joined.docs.parquet").read_bytes() == whole


def test_a_view_is_written_out_with_its_rows(folder: Path) -> None:
    numbers = DRAW.integers(0, 40, 60)
    write_view("view", [MMapIndexedDataset(name) for name in BOUNDS], numbers, made_by={})
    tokpack.merge("view", "copy")
    every = expected()
    assert rows("copy") == [every[number] for number in numbers]
    tokpack.split("view", "part", shares=[0.5, 0.3, 0.2])
    parts = [f"part_{name}" for name in ("train", "valid", "test")]
    assert [row for part in parts for row in rows(part)] == rows("copy")
    tokpack.convert("view", "wide", dtype="int32")
    assert rows("wide") == rows("copy")
    assert MMapIndexedDataset("wide").dtype == np.int32


def test_without_a_table_there_is_none(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    table_is_gone(folder / "b")
    tokpack.merge("b", "plain")
    assert not [one for one in caplog.messages if "table" in one]
    tokpack.merge(["a", "b"], "ab")
    assert not (folder / "ab.docs.parquet").exists()
    assert "b has no table of documents, so the new dataset has none" in caplog.messages
    tokpack.verify("ab")
    tokpack.merge("a", "ab", overwrite=True)
    assert len(rows("ab")) == 15
    tokpack.merge("b", "ab", overwrite=True)
    assert not (folder / "ab.docs.parquet").exists()
    (folder / "c.docs.parquet").unlink()
    tokpack.merge(["a", "c"], "ac")
    assert any("docs.parquet is missing" in one for one in caplog.messages)
    tokpack.verify("ac")


def test_on_a_store(folder: Path) -> None:
    pytest.importorskip("fsspec")
    tokpack.merge(["a", "b"], "local")
    tokpack.merge(["a", "b"], "memory://tables/ab")
    assert rows("memory://tables/ab") == rows("local")
    write_view("view", [MMapIndexedDataset("c")], np.array([7, 2, 7]), made_by={})
    tokpack.merge("view", "memory://tables/view")
    assert [one.line for one in Origins("memory://tables/view")] == [8, 3, 8]
    tokpack.split("memory://tables/ab", "memory://tables/part", parts=2)
    lines = [one.line for part in "01" for one in Origins(f"memory://tables/part_0000{part}")]
    assert lines == [*range(1, 16), *range(1, 16)]


def test_records_that_were_left_out(bpe: Path, tmp_path: Path) -> None:
    for name, empty in (("a", "skip"), ("b", "skip"), ("c", "document")):
        lines = ['{"text": "of the"}', '{"text": ""}', "{", '{"text": "the"}']
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        options: dict[str, Any] = {"on_error": "skip", "trace": True, "empty": empty}
        path = tmp_path / f"{name}.jsonl"
        tokpack.encode(path, tmp_path / name, tokenizer=str(bpe), **options)
    made = tokpack.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "ab")
    assert made.dropped
    tokpack.verify(tmp_path / "ab")
    origins = Origins(tmp_path / "ab")
    assert [origins.find("b.jsonl", line)[0].became for line in range(1, 5)] == [
        "document", "empty", "rejected", "document",
    ]  # fmt: skip
    assert [str(one).rpartition("/")[2] for one in origins] == [
        "a.jsonl:1", "a.jsonl:4", "b.jsonl:1", "b.jsonl:4",
    ]  # fmt: skip
    tokpack.convert(tmp_path / "ab", tmp_path / "wide", dtype="int32")
    assert Origins(tmp_path / "wide").find("b.jsonl", 3)[0].became == "rejected"
    tokpack.merge([tmp_path / "c", tmp_path / "c"], tmp_path / "cc")
    tokpack.verify(tmp_path / "cc")
    assert len(Origins(tmp_path / "cc")) == 6
    tokpack.merge([tmp_path / "a", tmp_path / "c"], tmp_path / "ac")  # which counts differently
    tokpack.verify(tmp_path / "ac")
    assert not (tmp_path / "ac.docs.parquet").exists()
    made = tokpack.split(tmp_path / "ab", tmp_path / "part", parts=2)[1][1]
    assert made.table
    assert not made.dropped

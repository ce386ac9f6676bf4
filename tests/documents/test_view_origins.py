"""Where the documents of views came from, and which of them a line became."""

from __future__ import annotations

import tempfile
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cli_tools import tokpack as command
from support.encoding_tools import write_jsonl
from support.faults import flip

pytest.importorskip("pyarrow")

pytest.importorskip("duckdb")

import pyarrow as pa
import pyarrow.parquet as pq
from support.map_functions import even

import tokpack
from tokpack.dataset import MMapIndexedDataset, Origins
from tokpack.dataset import table as tables
from tokpack.dataset.sources import Sources
from tokpack.documents import dedup
from tokpack.documents.write import write_view
from tokpack.errors import FormatError, InputError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def encoded(bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``a`` with 12 documents and ``b`` with 9, each with a blank line and an empty text first."""
    monkeypatch.chdir(tmp_path)
    for name, count in (("a", 12), ("b", 9)):
        texts = ["", *(f"the {name} of {number}" for number in range(count))]
        write_jsonl(tmp_path / f"{name}.jsonl", texts)
        tokpack.encode(f"{name}.jsonl", name, tokenizer=str(bpe), trace=True)
    return tmp_path


def test_a_view_has_the_text_of_its_documents(encoded: Path) -> None:
    datasets = [MMapIndexedDataset("a"), MMapIndexedDataset("b")]
    all_of_it = write_view("all", datasets, np.arange(21), made_by={})
    assert all_of_it.text_bytes == sum(one.manifest.text_bytes for one in datasets if one.manifest)
    some = write_view("some", datasets, np.array([20, 0, 20]), made_by={})
    assert some.text_bytes == len("the b of 8the a of 0the b of 8")
    tokpack.merge("some", "copy")
    assert tokpack.Manifest.load("copy").text_bytes == some.text_bytes
    (encoded / "b.docs.parquet").unlink()
    assert write_view("unknown", datasets, np.arange(21), made_by={}).text_bytes == 0


def test_documents_and_lines_of_a_view(encoded: Path) -> None:
    names = [f"a.jsonl:{line}" for line in range(2, 14)] + [f"b.jsonl:{n}" for n in range(2, 11)]
    numbers = np.random.default_rng(3).permutation(np.repeat(np.arange(21), 2))[:30]
    left_out = sorted({*range(21)} - {*numbers.tolist()})
    assert left_out
    datasets = [MMapIndexedDataset("a"), MMapIndexedDataset("b")]
    write_view("view", datasets, numbers, made_by={})
    expected = [names[number] for number in numbers]
    origins = Origins("view")
    assert len(origins) == 30
    assert [str(origin) for origin in origins] == expected
    assert [str(origins[number]) for number in range(-30, 30)] == expected * 2
    assert [origin.document for origin in origins] == list(range(30))
    with pytest.raises(IndexError):
        origins[30]
    for number, name in enumerate(names):
        source, _, line = name.rpartition(":")
        places = np.flatnonzero(numbers == number).tolist()
        answers = origins.find(source, int(line))
        assert [origin.document for origin in answers] == (places or [None])
        if not places:
            assert answers[0].became == "unselected"
    assert origins.find("b.jsonl", 1)[0].became == "empty"
    assert origins.find("b.jsonl", 99)[0].became == "nothing"
    found = Sources(MMapIndexedDataset("view"))
    assert [str(found.find(number)) for number in range(30)] == expected
    assert command("trace", "view", "--doc", "0:3").stdout.splitlines() == expected[:3]
    asked = command("trace", "view", "--source", names[left_out[0]])
    assert asked.stdout.startswith("not in the view: it is document ")
    # A view of a virtual dataset, and of views, has the same rows.
    tokpack.merge(["a", "b"], "both", virtual=True)
    write_view("other", [MMapIndexedDataset("both")], numbers, made_by={})
    assert [str(origin) for origin in Origins("other")] == expected
    write_view("third", [MMapIndexedDataset("view")], np.array([29, 0, 29]), made_by={})
    assert [str(one) for one in Origins("third")] == [expected[29], expected[0], expected[29]]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), data=st.data())
def test_rows_of_groups_in_any_order(sizes: list[int], data: st.DataObject) -> None:
    total = sum(sizes)
    rows = [{"source": f"in{number // 3}", "line": number} for number in range(total)]
    table = pa.Table.from_pylist(rows)
    table = table.set_column(0, "source", table["source"].dictionary_encode())
    chosen = data.draw(st.lists(st.integers(0, total - 1), max_size=20))
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        with pq.ParquetWriter(file.name, table.schema) as writer:
            for size, end in zip(sizes, accumulate(sizes), strict=True):
                writer.write_table(table.slice(end - size, size))
        reader = tables.TableReader(file.name)
        taken = reader.take(np.array(chosen, np.int64), ("source", "line"))
        assert taken.to_pylist() == [rows[number] for number in chosen]
        with pytest.raises(IndexError):
            reader.take(np.array([total]), ("line",))


def test_what_has_changed_is_refused(encoded: Path, bpe: Path) -> None:
    write_view("view", [MMapIndexedDataset("a")], np.array([3, 1]), made_by={})
    write_jsonl(encoded / "b.jsonl", ["of the", "the of", "of", "the"])
    whole = (encoded / "view.selection").read_bytes()
    flip(encoded / "view.selection", -4)
    with pytest.raises(FormatError, match=r"view\.selection: xxh3_128"):
        Origins("view")
    (encoded / "view.selection").write_bytes(whole)
    tokpack.encode("b.jsonl", "a", tokenizer=str(bpe), trace=True, overwrite=True)
    with pytest.raises(FormatError, match="changed"):
        Origins("view")
    tokpack.encode("b.jsonl", "plain", tokenizer=str(bpe))
    write_view("bare", [MMapIndexedDataset("plain")], np.array([0]), made_by={})
    with pytest.raises(InputError, match=r"^plain:"):
        Origins("bare")


def test_copies_in_a_view_are_by_the_hashes_of_its_datasets(
    encoded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_view("view", [MMapIndexedDataset("b")], np.array([5, 2, 5, 0, 2]), made_by={})
    assert tables.has_table("view")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the tokens were read")

    monkeypatch.setattr(import_module("tokpack.documents.keys"), "scan_documents", refuse)
    dedup(["view"], "clean")
    documents = [sequence.tolist() for sequence in MMapIndexedDataset("b")]
    assert [one.tolist() for one in MMapIndexedDataset("clean")] == [
        documents[number] for number in (5, 2, 0)
    ]


@pytest.mark.parametrize(("options", "named"), [
    ({"where": "id % 2 = 0"}, "left out by where"),
    ({"map": even}, "left out by map"),
])  # fmt: skip
def test_what_where_and_map_left_out_is_named(
    bpe: Path, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"text": "of the", "id": {number}}}\n' for number in range(4)))
    tokpack.encode(path, tmp_path / "x", tokenizer=str(bpe), trace=True, **options)
    [origin] = Origins(tmp_path / "x").find("x.jsonl", 2)
    assert (origin.became, origin.reason) == ("nothing", f"blank, behind the last line, or {named}")
    write_view(tmp_path / "view", [MMapIndexedDataset(tmp_path / "x")], np.array([1]), made_by={})
    assert Origins(tmp_path / "view").find("x.jsonl", 2) == [origin]

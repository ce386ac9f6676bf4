"""Views: lists of documents read like a dataset of copies, and what is wrong with them named."""

from __future__ import annotations

import json
import os
import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import DOCUMENTS, Documents, documents_of, plain
from support.indexed_twin import write_plainly

import tokpack
from tokpack.documents import write_view
from tokpack.errors import FormatError, InputError, TokpackError, UsageError
from tokpack.indexed import MMapIndexedDataset

PARTS: list[Documents] = [[[[1, 2, 3]], [[4]], [[5, 6], [7]], []], [[[8, 9]], [[10]]]]


def write_parts(folder: str | Path, parts: list[Documents]) -> list[MMapIndexedDataset]:
    """A dataset for each part."""
    for number, documents in enumerate(parts):
        write_plainly(f"{folder}/part{number}", plain(documents))
    return [MMapIndexedDataset(f"{folder}/part{number}") for number in range(len(parts))]


def view_of(prefix: str | Path, datasets: list[MMapIndexedDataset], numbers: list[int]) -> None:
    write_view(prefix, datasets, np.array(numbers, np.int64), made_by={}, overwrite=True)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A view of documents 5, 0, 0 and 2 of PARTS."""
    view_of(tmp_path / "view", write_parts(tmp_path, PARTS), [5, 0, 0, 2])
    return tmp_path / "view"


def check_same(dataset: MMapIndexedDataset, documents: Documents) -> None:
    """That a dataset reads as these documents."""
    expected = plain(documents)
    assert [sequence.tolist() for sequence in dataset] == expected.sequences
    assert [one.tolist() for one in dataset[::-1]] == expected.sequences[::-1]
    assert dataset.sizes.tolist() == [len(one) for one in expected.sequences]
    assert dataset.doc_idx.tolist() == expected.doc_idx
    assert dataset.documents == len(documents)
    for number, document in enumerate(documents):
        assert dataset.document(number).tolist() == [one for part in document for one in part]
    for number in (-1, len(documents)):
        with pytest.raises(IndexError, match=f"document {number} of {len(documents)}"):
            dataset.document(number)
    for number, sequence in enumerate(expected.sequences):
        assert dataset.get(number, len(sequence) // 2).tolist() == sequence[len(sequence) // 2 :]
    [shard] = dataset.shards()
    tokens = [token for sequence in expected.sequences for token in sequence]
    assert len(shard.tokens) == dataset.token_count == len(tokens)
    for begin in range(0, len(tokens) + 1, 3):
        for end in range(begin, len(tokens) + 1, 4):
            assert shard.tokens[begin:end].tolist() == tokens[begin:end]


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(DOCUMENTS, min_size=1, max_size=4), data=st.data())
def test_it_reads_like_the_documents_that_it_lists(
    parts: list[Documents], data: st.DataObject
) -> None:
    documents = [document for part in parts for document in part]
    if data.draw(st.booleans()):  # the usual case, which has a path of its own
        parts = [
            [[[token for one in document for token in one]] for document in part] for part in parts
        ]
        documents = [document for part in parts for document in part]
    numbers = st.lists(st.integers(0, max(len(documents) - 1, 0)), max_size=12 if documents else 0)
    chosen = data.draw(numbers)
    with tempfile.TemporaryDirectory() as folder:
        datasets = write_parts(folder, parts)
        view_of(f"{folder}/view", datasets, chosen)
        view = MMapIndexedDataset(f"{folder}/view", verify=True)
        expected = [documents[number] for number in chosen]
        check_same(view, expected)
        tokpack.merge(f"{folder}/view", f"{folder}/copy")
        assert documents_of(f"{folder}/copy") == expected
        assert MMapIndexedDataset(f"{folder}/copy").fingerprint == view.fingerprint
        # A view of a view and of what that one lists has each base once.
        again = data.draw(
            st.lists(st.integers(0, len(chosen) + len(parts[0]) - 1), max_size=8)
            if chosen or parts[0]
            else st.just([])
        )
        view_of(f"{folder}/again", [view, datasets[0]], again)
        both = [*expected, *parts[0]]
        flat = MMapIndexedDataset(f"{folder}/again")
        check_same(flat, [both[number] for number in again])
        assert flat.view is not None
        assert len(flat.view.base.records) == len(parts)


def test_it_is_a_dataset_like_any_other(prefix: Path) -> None:
    dataset = MMapIndexedDataset(prefix)
    assert MMapIndexedDataset.exists(prefix)
    assert "view" in repr(dataset)
    assert pickle.loads(pickle.dumps(dataset))[1].tolist() == [1, 2, 3]
    for beyond in (5, -6):
        with pytest.raises(IndexError, match=f"sequence {beyond} of 5"):
            dataset[beyond]
    for what in ("tokens", "pointers"):
        with pytest.raises(UsageError, match=rf"a view, whose {what} lie in 2 datasets.*merge"):
            getattr(dataset, what)
    assert not dataset[0].flags.writeable
    first = dataset[0]
    dataset.close()
    assert first.tolist() == [10]


def test_every_command_takes_it(prefix: Path, tmp_path: Path) -> None:
    tokpack.merge(prefix, tmp_path / "copy")
    expected = documents_of(tmp_path / "copy")
    assert expected == [[[10]], [[1, 2, 3]], [[1, 2, 3]], [[5, 6], [7]]]
    report = tokpack.verify(prefix)
    assert (report.documents, report.sequences, report.tokens) == (4, 5, 10)
    tokpack.split(prefix, tmp_path / "half", parts=2)
    tokpack.split(tmp_path / "copy", tmp_path / "same", parts=2)
    for number in range(2):
        assert documents_of(tmp_path / f"half_{number:05}") == documents_of(
            tmp_path / f"same_{number:05}"
        )
    tokpack.convert(prefix, tmp_path / "wide", dtype="int64")
    assert documents_of(tmp_path / "wide") == expected
    one, other = tokpack.stats(prefix), tokpack.stats(tmp_path / "copy")
    assert one.duplicates == other.duplicates
    assert one.frequency == other.frequency
    assert one.histogram == other.histogram
    with pytest.raises(UsageError, match=r"view is a view, .*tokpack select"):
        tokpack.merge([prefix], tmp_path / "all", virtual=True)
    with tokpack.MMapIndexedDatasetBuilder(f"{tmp_path}/x.bin", np.uint16) as builder:
        builder.merge_file_(str(prefix))
        builder.finalize(f"{tmp_path}/x.idx")
    assert documents_of(tmp_path / "x") == expected


def test_what_has_changed_is_refused(prefix: Path, tmp_path: Path) -> None:
    dataset = MMapIndexedDataset(prefix)
    write_plainly(tmp_path / "part1", plain([[[8, 9]], [[11]]]))  # of the same counts
    with pytest.raises(FormatError, match=r"part1, was replaced: fingerprint is .*select again"):
        dataset[0]
    write_plainly(tmp_path / "part1", plain([[[8, 9]], [[10, 11]]]))
    with pytest.raises(FormatError, match=r"part1, has changed: tokens is 4.*select again"):
        dataset[0]
    os.unlink(tmp_path / "part1.idx")
    with pytest.raises(InputError, match=r"part1, is missing"):
        MMapIndexedDataset(prefix)[0]


def test_other_bytes_of_the_same_fingerprint_are_found_by_the_checksum(tmp_path: Path) -> None:
    ids = np.zeros(400_000, np.uint16)
    for number, name in enumerate(("before", "after")):
        ids[200_000 + 50_000] = number
        write_plainly(tmp_path / name, plain([[ids.tolist()]]))
    tokpack.merge(tmp_path / "before", tmp_path / "data")
    view_of(tmp_path / "view", [MMapIndexedDataset(tmp_path / "data")], [0])
    assert MMapIndexedDataset(tmp_path / "view")[0][250_000] == 0
    tokpack.merge(tmp_path / "after", tmp_path / "data", overwrite=True)
    with pytest.raises(FormatError, match=r"data, was replaced: xxh3_128 is"):
        MMapIndexedDataset(tmp_path / "view")[0]


def numbers_of(*numbers: int) -> bytes:
    return b"".join(struct.pack("<I", number) for number in numbers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], r"31 bytes, expected 32, .*cut off"),
        (lambda data: data + b"x", r"33 bytes, expected 32, .*too long"),
        (lambda data: b"X" + data[1:], r"magic is b'XOKPSEL.*not a selection"),
        (lambda data: data[:8] + numbers_of(2) + data[12:], r"version is 2, .*upgrade"),
        (lambda data: data[:12] + numbers_of(8) + data[16:], r"expected 4 numbers of"),
        (lambda data: data[:12] + numbers_of(0) + data[16:], r"expected 4 numbers of"),
        (lambda data: data[:16] + numbers_of(6) + data[20:], r"number 0 is document 6, of 6"),
        (lambda data: data[:28] + numbers_of(2**32 - 1), r"number 3 is document 4294967295"),
        (lambda data: data[:16] + numbers_of(4) + data[20:], r"xxh3_128 is"),
        (lambda data: data[:28] + numbers_of(1), r"xxh3_128 is|sequences are 5"),
    ],
)
def test_nothing_in_a_selection_is_believed(prefix: Path, change: Any, message: str) -> None:
    path = Path(f"{prefix}.selection")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FormatError, match=rf"view\.selection.*({message})"):
        MMapIndexedDataset(prefix, verify=True)
    with pytest.raises(FormatError, match=r"view\.selection"):
        _ = MMapIndexedDataset(prefix).sizes


@settings(max_examples=80, deadline=None)
@given(at=st.integers(0, 31), value=st.integers(0, 255))
def test_a_damaged_byte_gives_an_error_or_the_same(at: int, value: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        view_of(f"{folder}/view", write_parts(folder, PARTS), [5, 0, 0, 2])
        data = bytearray(Path(f"{folder}/view.selection").read_bytes())
        same, data[at] = data[at] == value, value
        Path(f"{folder}/view.selection").write_bytes(data)
        try:
            found = [one.tolist() for one in MMapIndexedDataset(f"{folder}/view", verify=True)]
        except TokpackError:
            assert not same
        else:
            assert same
            assert found == [[10], [1, 2, 3], [1, 2, 3], [5, 6], [7]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selection": 1}, "selection is 1"),
        ({"selection": {"bytes": -1, "xxh3_128": ""}}, "selection is"),
        ({"pieces": None}, "pieces is NoneType"),
        ({"documents": 3}, "expected 3 numbers"),
        ({"sequences": 4}, "sequences are 4"),
        ({"sequences": 6}, "sequences are 6"),
        ({"sequences": 2**61}, "sequences are 2305843009213693952"),
        ({"tokens": 2**61}, "tokens are 2305843009213693952"),
        ({"sequences": 2**63}, "more than a dataset can have"),
        ({"tokens": 9}, "tokens are 9"),
        ({"tokpack": {"manifest": 99}}, "version is 99"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    prefix: Path, change: dict[str, Any], message: str
) -> None:
    values = json.loads(Path(f"{prefix}.json").read_text())
    Path(f"{prefix}.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(FormatError, match=message):
        MMapIndexedDataset(prefix, verify=True)
    with pytest.raises(FormatError, match=message):  # nothing was allocated for what it says
        next(MMapIndexedDataset(prefix).shards()).tokens[:]


def test_a_view_replaces_and_is_replaced(tmp_path: Path) -> None:
    datasets = write_parts(tmp_path, PARTS)
    write_plainly(tmp_path / "data", plain([[[1]]]))
    with pytest.raises(tokpack.OutputError, match="exists"):
        write_view(tmp_path / "data", datasets, np.array([1]), made_by={})
    view_of(tmp_path / "data", datasets, [1])
    assert {path.suffix for path in tmp_path.glob("data*")} == {".json", ".selection"}
    assert MMapIndexedDataset(tmp_path / "data")[0].tolist() == [4]
    old = MMapIndexedDataset(tmp_path / "data")
    view_of(tmp_path / "data", datasets, [0])
    assert MMapIndexedDataset(tmp_path / "data")[0].tolist() == [1, 2, 3]
    assert old[0].tolist() == [4]
    with pytest.raises(InputError, match="was replaced while it was read"):
        tokpack.indexed.MMapIndexedDataset.shards(old).__next__().check_current("read")
    tokpack.merge(tmp_path / "part1", tmp_path / "data", overwrite=True)
    assert {path.suffix for path in tmp_path.glob("data*")} == {".json", ".bin", ".idx"}
    (tmp_path / "v.selection").write_text("notes of mine")
    with pytest.raises(tokpack.OutputError, match=r"v\.selection: exists and is not a selection"):
        view_of(tmp_path / "v", datasets, [0])
    with pytest.raises(UsageError, match="is an input"):
        view_of(tmp_path / "part1", datasets, [0])


def test_numbers_of_other_documents_are_refused(tmp_path: Path) -> None:
    datasets = write_parts(tmp_path, PARTS)
    for numbers in ([6], [0, -1]):
        with pytest.raises(UsageError, match=r"document .* of datasets that have 6"):
            view_of(tmp_path / "v", datasets, numbers)
    with pytest.raises(UsageError, match="integers in one dimension"):
        write_view(tmp_path / "v", datasets, np.array([0.5]), made_by={})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nothing to select from"):
        view_of(tmp_path / "v", [], [])
    assert not list(tmp_path.glob("v*"))


def test_what_has_no_table_of_its_own_says_so(prefix: Path) -> None:
    from tokpack.indexed.origins import Origins
    from tokpack.indexed.table import has_table, table_paths

    assert not has_table(str(prefix))
    for ask, message in ((table_paths, "is a view"), (Origins, "has no table of its documents")):
        with pytest.raises(InputError, match=message):
            ask(prefix)

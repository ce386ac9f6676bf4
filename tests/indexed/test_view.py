"""Views: lists of documents read like a dataset of copies, and what is wrong with them named."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import DOCUMENTS, Documents, documents_of, plain
from support.indexed_twin import write_plainly

import tokpack
from tokpack.dataset import MMapIndexedDataset
from tokpack.documents import write_view
from tokpack.errors import FormatError, InputError, TokpackError

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
        with pytest.raises(IndexError):
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
        with pytest.raises(IndexError):
            dataset[beyond]
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
    with tokpack.MMapIndexedDatasetBuilder(f"{tmp_path}/x.bin", np.uint16) as builder:
        builder.merge_file_(str(prefix))
        builder.finalize(f"{tmp_path}/x.idx")
    assert documents_of(tmp_path / "x") == expected


def test_other_bytes_of_the_same_fingerprint_are_found_by_the_checksum(tmp_path: Path) -> None:
    ids = np.zeros(400_000, np.uint16)
    for number, name in enumerate(("before", "after")):
        ids[200_000 + 50_000] = number
        write_plainly(tmp_path / name, plain([[ids.tolist()]]))
    tokpack.merge(tmp_path / "before", tmp_path / "data")
    view_of(tmp_path / "view", [MMapIndexedDataset(tmp_path / "data")], [0])
    assert MMapIndexedDataset(tmp_path / "view")[0][250_000] == 0
    tokpack.merge(tmp_path / "after", tmp_path / "data", overwrite=True)
    with pytest.raises(FormatError, match=r"/view: .*/data, .*\bxxh3_128 is \w{32}, "):
        MMapIndexedDataset(tmp_path / "view")[0]


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


def test_a_view_replaces_and_is_replaced(tmp_path: Path) -> None:
    datasets = write_parts(tmp_path, PARTS)
    write_plainly(tmp_path / "data", plain([[[1]]]))
    view_of(tmp_path / "data", datasets, [1])
    assert {path.suffix for path in tmp_path.glob("data*")} == {".json", ".selection"}
    assert MMapIndexedDataset(tmp_path / "data")[0].tolist() == [4]
    old = MMapIndexedDataset(tmp_path / "data")
    view_of(tmp_path / "data", datasets, [0])
    assert MMapIndexedDataset(tmp_path / "data")[0].tolist() == [1, 2, 3]
    assert old[0].tolist() == [4]
    with pytest.raises(InputError, match=r"/data: .*replaced"):
        tokpack.dataset.MMapIndexedDataset.shards(old).__next__().check_current("read")
    tokpack.merge(tmp_path / "part1", tmp_path / "data", overwrite=True)
    assert {path.suffix for path in tmp_path.glob("data*")} == {".json", ".bin", ".idx"}

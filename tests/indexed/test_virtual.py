"""Many datasets read as one: the same answers as from the merged one, few files open."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import DOCUMENTS, Documents, plain
from support.indexed_twin import Plain, read_plainly, take_sum, write_plainly

from tokpack.dataset import Manifest, MMapIndexedDataset
from tokpack.dataset.manifest import TRUST, trust_setting
from tokpack.dataset.merge import merge
from tokpack.dataset.shards import OPEN_SHARDS
from tokpack.errors import FormatError, InputError


def make(folder: str | Path, parts: list[Documents]) -> tuple[str, Plain]:
    """A virtual dataset of some pieces, and what it must read as."""
    names = [f"{folder}/piece{number}" for number in range(len(parts))]
    for name, documents in zip(names, parts, strict=True):
        write_plainly(name, plain(documents))
    merge(names, f"{folder}/all", virtual=True)
    return f"{folder}/all", plain([document for documents in parts for document in documents])


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return make(tmp_path, [[[[1, 2, 3], []]], [], [[], [[4]]], [[[5, 6, 7, 8]]]])[0]


@pytest.fixture(params=["in pieces", "in files"])
def either(prefix: str, request: pytest.FixtureRequest) -> str:
    """The same dataset, virtual or not."""
    if request.param == "in files":
        merge([prefix], prefix.replace("all", "piece"))
        return prefix.replace("all", "piece")
    return prefix


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(DOCUMENTS, min_size=1, max_size=5), data=st.data())
def test_it_reads_like_the_merged_dataset(parts: list[Documents], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        virtual, expected = make(folder, parts)
        merge([virtual], f"{folder}/real")
        assert read_plainly(f"{folder}/real") == expected
        prefix = data.draw(st.sampled_from([virtual, f"{folder}/real"]))
        dataset = MMapIndexedDataset(prefix, verify=True)
        assert len(dataset.records) == (len(parts) if prefix == virtual else 0)
        count = len(expected.sequences)
        assert len(dataset) == count
        assert [sequence.tolist() for sequence in dataset] == expected.sequences
        assert dataset.sizes.tolist() == [len(sequence) for sequence in expected.sequences]
        assert dataset.doc_idx.tolist() == expected.doc_idx
        assert (dataset.dtype, dataset.sizes.dtype) == (np.uint16, np.int32)
        edge = st.none() | st.integers(-count - 2, count + 2)
        part = slice(data.draw(edge), data.draw(edge), data.draw(st.sampled_from([None, 1, 2, -1])))
        assert [sequence.tolist() for sequence in dataset[part]] == expected.sequences[part]
        for number in range(count):
            assert dataset[number - count].tolist() == expected.sequences[number]
            size = len(expected.sequences[number])
            begin = data.draw(st.integers(0, size))
            end = data.draw(st.integers(begin, size))
            assert dataset.get(number, begin).tolist() == expected.sequences[number][begin:]
            part_of_it = dataset.get(number, np.int64(begin), end - begin)
            assert part_of_it.tolist() == expected.sequences[number][begin:end]


def test_the_edges_are_those_of_a_list(either: str) -> None:
    dataset = MMapIndexedDataset(either)
    for beyond in (4, -5, 2**70):
        with pytest.raises(IndexError):
            dataset[beyond]
    with pytest.raises(TypeError):
        dataset["1"]  # type: ignore[call-overload]
    for offset, length in ((-1, 1), (0, -1), (0, 5), (5, None)):
        with pytest.raises(IndexError, match="sequence 3"):
            dataset.get(3, offset, length)
    assert dataset.get(-1, 1, 2).tolist() == [6, 7]
    assert dataset.path_prefix == either
    assert "4 sequences" in repr(dataset)
    assert dataset.sequence_lengths.tolist() == [3, 0, 1, 4]
    assert dataset.document_indices.tolist() == [0, 2, 2, 3, 4]
    for array in (dataset[0], dataset.sizes, dataset.doc_idx):
        assert not array.flags.writeable
    assert MMapIndexedDataset.exists(either)


def test_it_outlives_its_files_and_itself(either: str) -> None:
    with MMapIndexedDataset(either) as dataset:
        last, walk = dataset[-1], iter(dataset)
        first, sizes = next(walk), dataset.sizes
    rest = list(walk)
    for path in Path(either).parent.glob("*"):
        path.unlink()
    gc.collect()
    assert (first.tolist(), last.tolist()) == ([1, 2, 3], [5, 6, 7, 8])
    assert sizes.tolist() == [3, 0, 1, 4]
    assert [sequence.tolist() for sequence in rest] == [[], [4], [5, 6, 7, 8]]
    assert "closed" in repr(dataset)
    for access in (lambda: dataset[0], lambda: len(dataset), lambda: dataset.sizes):
        with pytest.raises(ValueError, match="closed"):
            access()


def open_maps(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_thousands_of_pieces_few_of_them_open(tmp_path: Path) -> None:
    count = 2000
    write_plainly(tmp_path / "one", Plain("i", [[7, 8]], [0, 1]))
    one = {suffix: (tmp_path / f"one.{suffix}") for suffix in ("bin", "idx")}
    names = [str(tmp_path / f"p{number}") for number in range(count)]
    for number, name in enumerate(names):
        Path(f"{name}.bin").write_bytes(np.array([number, 8], "<i4").tobytes())
        os.link(one["idx"], f"{name}.idx")
    merge(names, str(tmp_path / "all"), virtual=True)
    dataset = MMapIndexedDataset(tmp_path / "all")
    assert open_maps(tmp_path) == 0  # opening opens no piece
    files = len(os.listdir("/proc/self/fd"))
    held = dataset[3]
    order = np.random.default_rng(0).permutation(count)
    assert all(dataset[number][0] == number for number in order)
    assert open_maps(tmp_path) <= 2 * OPEN_SHARDS + 1
    assert len(os.listdir("/proc/self/fd")) - files <= 2 * OPEN_SHARDS + 1
    assert held.tolist() == [3, 8]
    assert dataset.doc_idx[-1] == count
    del dataset, held
    assert open_maps(tmp_path) == 0  # without waiting for the garbage collector


def test_pieces_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST, str(tmp_path))
    (tmp_path / "a" / "b").mkdir(parents=True)
    write_plainly(tmp_path / "a" / "one", plain([[[1]]]))
    write_plainly(tmp_path / "two", plain([[[2]]]))
    monkeypatch.chdir(tmp_path / "a")
    merge(["one", "../two"], "b/all", virtual=True)
    rows = json.loads(Path("b/all.json").read_text())["pieces"]
    assert [row["prefix"] for row in rows] == ["../one", "../../two"]
    assert [sequence.tolist() for sequence in MMapIndexedDataset("b/all")] == [[1], [2]]
    os.rename(tmp_path / "a", tmp_path / "moved")
    monkeypatch.chdir("/")
    found = MMapIndexedDataset(tmp_path / "moved" / "b" / "all")
    assert [sequence.tolist() for sequence in found[:1]] == [[1]]
    merge([str(tmp_path / "moved/b/all"), str(tmp_path / "two")], str(tmp_path / "v"), virtual=True)
    flat = MMapIndexedDataset(tmp_path / "v")
    assert [record.prefix for record in flat.records] == ["moved/one", "two", "two"]


def test_what_to_trust_is_told_as_a_shell_takes_it() -> None:
    paths = ["/data/a/x", "/data/a/b/y", "/data/ab/z", "s3://tokens/x", "s3://tokens/far/y"]
    assert trust_setting(paths) == f"{TRUST}=/data/a,/data/ab,s3://tokens"
    assert trust_setting(["/my data/x"]) == f"{TRUST}='/my data'"


def test_pieces_that_did_not_change_are_read(prefix: str) -> None:
    folder = Path(prefix).parent
    dataset = MMapIndexedDataset(prefix)
    write_plainly(folder / "piece3", plain([[[5, 6, 7, 8, 9]]]))
    assert dataset[0].tolist() == [1, 2, 3]
    with pytest.raises(FormatError, match="piece3"):
        dataset[-1]


def test_processes_and_threads_share_it(either: str) -> None:
    dataset = MMapIndexedDataset(either)
    stored = pickle.dumps(dataset)
    assert len(stored) < 200 + len(either)
    assert pickle.loads(stored)[3].tolist() == [5, 6, 7, 8]
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(take_sum, [(dataset, number) for number in range(4)]) == [6, 0, 4, 26]
    wrong: list[Any] = []

    def walk() -> None:
        wrong.extend(n for n in range(2000) if len(dataset[n % 4]) != (3, 0, 1, 4)[n % 4])

    threads = [threading.Thread(target=walk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_files_are_not_taken_for_a_virtual_dataset(prefix: str, tmp_path: Path) -> None:
    manifest = Manifest.load(prefix)  # a manifest like any other, for whoever reads those
    assert (manifest.sequences, manifest.tokens, manifest.documents) == (4, 8, 4)
    for text in ('{"pieces": []}', "[]", ""):
        (tmp_path / "other.json").write_text(text)
        assert not MMapIndexedDataset.exists(tmp_path / "other")
        with pytest.raises(InputError, match=r"other\.idx"):
            MMapIndexedDataset(tmp_path / "other")
    write_plainly(prefix, plain([[[9]]]))  # files go before a list of pieces
    assert MMapIndexedDataset(prefix)[0].tolist() == [9]
    merge([str(tmp_path / "piece0")], prefix, virtual=True, overwrite=True)
    assert MMapIndexedDataset(prefix)[0].tolist() == [1, 2, 3]

"""MMapIndexedDataset as its users know it."""

from __future__ import annotations

import os
import resource
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.indexed_twin import Plain, write_plainly

from tokpack.dataset import MMapIndexedDataset
from tokpack.errors import InputError

SEQUENCES = [[1, 2, 3], [], [4], [5, 6, 7, 8]]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    write_plainly(tmp_path / "data", Plain("H", SEQUENCES, [0, 2, 2, 4]))
    return tmp_path / "data"


def test_index_negative_index_and_numpy_index(prefix: Path) -> None:
    dataset = MMapIndexedDataset(prefix)
    assert len(dataset) == 4
    for number, expected in enumerate(SEQUENCES):
        for index in (number, number - 4, np.int64(number), np.uint8(number), np.array(number)):
            assert dataset[index].tolist() == expected
    assert [sequence.tolist() for sequence in dataset] == SEQUENCES
    for beyond in (4, -5, 2**70, np.int32(-5)):
        with pytest.raises(IndexError):
            dataset[beyond]
    for wrong in (1.0, "1", None, (0, 1)):
        with pytest.raises(TypeError):
            dataset[wrong]  # type: ignore[call-overload]


def test_the_names_that_users_know(prefix: Path) -> None:
    dataset = MMapIndexedDataset(str(prefix), True)
    assert dataset.dtype == np.uint16
    assert dataset.sizes.tolist() == dataset.sequence_lengths.tolist() == [3, 0, 1, 4]
    assert dataset.sizes.dtype == np.int32
    assert dataset.doc_idx.tolist() == dataset.document_indices.tolist() == [0, 2, 2, 4]
    assert dataset.doc_idx.dtype == np.int64
    assert dataset.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert dataset.supports_prefetch is False
    assert str(prefix) in repr(dataset)


def test_the_prefix_may_be_a_path_or_either_file(prefix: Path, tmp_path: Path) -> None:
    for name in (prefix, str(prefix), f"{prefix}.bin", Path(f"{prefix}.idx")):
        assert MMapIndexedDataset.exists(name)
        assert MMapIndexedDataset(name).path_prefix == str(prefix)
    write_plainly(tmp_path / "x.bin", Plain("H", [[9]], [0, 1]))  # whose files are x.bin.bin ...
    assert MMapIndexedDataset(tmp_path / "x.bin")[0].tolist() == [9]


def test_a_dataset_is_there_with_both_files(prefix: Path, tmp_path: Path) -> None:
    assert not MMapIndexedDataset.exists(tmp_path / "other")
    with pytest.raises(InputError, match=r"other\.idx"):
        MMapIndexedDataset(tmp_path / "other")
    os.unlink(f"{prefix}.bin")
    assert not MMapIndexedDataset.exists(prefix)
    with pytest.raises(InputError, match=r"data\.bin"):
        MMapIndexedDataset(prefix)


def test_what_is_no_file_is_refused_and_does_not_block(prefix: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.idx")
    (tmp_path / "folder.idx").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(InputError, match=rf"/{name}\.idx:"):
            MMapIndexedDataset(tmp_path / name)
    with pytest.raises(InputError):
        MMapIndexedDataset(f"{prefix}.idx/below")


def test_arrays_are_read_only_views_of_the_file(prefix: Path) -> None:
    dataset = MMapIndexedDataset(prefix)
    for array in (dataset[0], dataset.get(3, 1, 2), dataset[:][0], dataset.tokens):
        assert not array.flags.writeable
        assert not array.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    assert np.shares_memory(dataset[0], dataset.tokens)
    assert not dataset.sizes.flags.writeable
    assert not dataset.doc_idx.flags.writeable


def test_a_replaced_dataset_stays_what_it_was_for_those_who_opened_it(prefix: Path) -> None:
    dataset = MMapIndexedDataset(prefix)
    write_plainly(f"{prefix}.new", Plain("H", [[9, 9, 9]], [0, 1]))
    for name in ("bin", "idx"):
        os.replace(f"{prefix}.new.{name}", f"{prefix}.{name}")
    assert [sequence.tolist() for sequence in dataset] == SEQUENCES
    assert MMapIndexedDataset(prefix)[0].tolist() == [9, 9, 9]


def test_a_dataset_without_tokens_opens(tmp_path: Path) -> None:
    write_plainly(tmp_path / "none", Plain("i", [], [0]))
    none = MMapIndexedDataset(tmp_path / "none", verify=True)
    assert (len(none), none[:], list(none), none.tokens.size) == (0, [], [], 0)
    with pytest.raises(IndexError):
        none[0]
    write_plainly(tmp_path / "hollow", Plain("i", [[], []], [0, 0, 1, 2]))
    hollow = MMapIndexedDataset(tmp_path / "hollow", verify=True)
    assert [sequence.tolist() for sequence in hollow] == [[], []]
    assert not hollow[0].flags.writeable


def test_a_forked_child_uses_the_map_of_its_parent(prefix: Path) -> None:
    dataset = MMapIndexedDataset(prefix)
    for name in ("bin", "idx"):
        os.unlink(f"{prefix}.{name}")
    child = os.fork()
    if child == 0:
        os._exit(0 if [sequence.tolist() for sequence in dataset] == SEQUENCES else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_opening_ten_million_sequences_takes_no_time_and_no_memory(tmp_path: Path) -> None:
    count = 10_000_000
    with (tmp_path / "big.idx").open("wb") as file:  # sparse: all lengths and pointers are 0
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, count, count + 1))
        file.truncate(34 + 12 * count + 8 * count)
        file.seek(0, os.SEEK_END)
        file.write(struct.pack("<q", count))
    (tmp_path / "big.bin").touch()
    MMapIndexedDataset(tmp_path / "big")  # so that nothing below is done for the first time
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tracemalloc.start()
    dataset = MMapIndexedDataset(tmp_path / "big")
    assert len(dataset) == count
    assert dataset[count // 2].size == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000  # bytes; the index has 200 million
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 1000  # pages, of 48829
    dataset.validate()

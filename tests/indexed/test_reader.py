"""MMapIndexedDataset as its users know it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import resource
import struct
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.indexed_twin import Plain, take_sum, write_plainly

from tokpack.errors import InputError
from tokpack.indexed import MMapIndexedDataset

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
        with pytest.raises(IndexError, match=f"sequence {int(beyond)} of 4"):
            dataset[beyond]
    for wrong in (1.0, "1", None, (0, 1)):
        with pytest.raises(TypeError):
            dataset[wrong]  # type: ignore[call-overload]


@pytest.mark.parametrize("step", [None, 1, 2, -1, -3])
def test_slices_are_those_of_a_list(prefix: Path, step: int | None) -> None:
    dataset = MMapIndexedDataset(prefix)
    for start in (None, -9, -1, 0, 1, 3, 9):
        for stop in (None, -9, -2, 0, 2, 9):
            part = slice(start, stop, step)
            assert [sequence.tolist() for sequence in dataset[part]] == SEQUENCES[part]


def test_get_takes_pieces_inside_one_sequence(prefix: Path) -> None:
    dataset = MMapIndexedDataset(prefix)
    for number, expected in enumerate(SEQUENCES):
        size = len(expected)
        assert dataset.get(number).tolist() == expected
        for begin in range(size + 1):
            assert dataset.get(number, begin).tolist() == expected[begin:]
            for end in range(begin, size + 1):
                assert (
                    dataset.get(number, np.int64(begin), end - begin).tolist()
                    == (expected[begin:end])
                )
        for offset, length in ((-1, 1), (0, -1), (0, size + 1), (size, 1), (size + 1, None)):
            with pytest.raises(IndexError, match=f"sequence {number}, which has {size} tokens"):
                dataset.get(number, offset, length)


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
    with pytest.raises(InputError, match=r"other\.idx: no such file; a dataset is PREFIX"):
        MMapIndexedDataset(tmp_path / "other")
    os.unlink(f"{prefix}.bin")
    assert not MMapIndexedDataset.exists(prefix)
    with pytest.raises(InputError, match=r"data\.bin: no such file"):
        MMapIndexedDataset(prefix)


def test_what_is_no_file_is_refused_and_does_not_block(prefix: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.idx")
    (tmp_path / "folder.idx").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(InputError, match=rf"{name}\.idx: not a regular file"):
            MMapIndexedDataset(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
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


def test_arrays_outlive_the_dataset(prefix: Path) -> None:
    first = MMapIndexedDataset(prefix)[0]
    with MMapIndexedDataset(prefix) as dataset:
        last, sizes = dataset[-1], dataset.sizes
        walk = iter(dataset)
        next(walk)
    gc.collect()
    for name in ("bin", "idx"):
        os.unlink(f"{prefix}.{name}")
    assert (first.tolist(), last.tolist(), sizes.tolist()) == (
        [1, 2, 3],
        [5, 6, 7, 8],
        [3, 0, 1, 4],
    )
    assert [sequence.tolist() for sequence in walk] == SEQUENCES[1:]
    assert "closed" in repr(dataset)
    dataset.close()
    for access in (
        lambda: dataset[0],
        lambda: len(dataset),
        lambda: dataset.sizes,
        dataset.validate,
    ):
        with pytest.raises(ValueError, match=r"data: the dataset is closed"):
            access()


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
    with pytest.raises(IndexError, match="sequence 0 of 0"):
        none[0]
    write_plainly(tmp_path / "hollow", Plain("i", [[], []], [0, 0, 1, 2]))
    hollow = MMapIndexedDataset(tmp_path / "hollow", verify=True)
    assert [sequence.tolist() for sequence in hollow] == [[], []]
    assert not hollow[0].flags.writeable


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_a_dataset(prefix: Path, method: str) -> None:
    dataset = MMapIndexedDataset(prefix)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(take_sum, [(dataset, number) for number in range(4)]) == [6, 0, 4, 26]


def test_a_forked_child_uses_the_map_of_its_parent(prefix: Path) -> None:
    dataset = MMapIndexedDataset(prefix)
    for name in ("bin", "idx"):
        os.unlink(f"{prefix}.{name}")
    child = os.fork()
    if child == 0:
        os._exit(0 if [sequence.tolist() for sequence in dataset] == SEQUENCES else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_pickle_holds_the_path_only(prefix: Path) -> None:
    stored = pickle.dumps(MMapIndexedDataset(prefix))
    assert len(stored) < 200 + len(str(prefix))
    assert pickle.loads(stored)[3].tolist() == [5, 6, 7, 8]
    os.unlink(f"{prefix}.idx")
    with pytest.raises(InputError, match="no such file"):
        pickle.loads(stored)


def test_threads_share_a_dataset(prefix: Path) -> None:
    dataset = MMapIndexedDataset(prefix)
    wrong: list[int] = []

    def walk() -> None:
        for number in range(4000):
            if dataset[number % 4].tolist() != SEQUENCES[number % 4]:
                wrong.append(number)

    threads = [threading.Thread(target=walk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


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


def test_torch_is_not_imported(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    code = (
        "import sys; from tokpack.indexed import *\n"
        "d = MMapIndexedDataset(sys.argv[1]); b = MMapIndexedDatasetBuilder(sys.argv[2])\n"
        "b.add_item(d[0]); b.add_item([1]); b.finalize(sys.argv[3])\n"
    )
    names = [str(prefix), str(tmp_path / "new.bin"), str(tmp_path / "new.idx")]
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert MMapIndexedDataset(names[1])[1].tolist() == [1]

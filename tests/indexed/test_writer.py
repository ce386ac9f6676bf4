"""MMapIndexedDatasetBuilder: what it writes, and what a failure leaves behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faults import limited
from support.indexed_twin import NAMES, Plain, read_plainly, write_plainly

from tokpack.dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder, index_chunks
from tokpack.errors import OutputError, UsageError
from tokpack.storage.disk.durable import replace_file

LETTERS = {name: letter for letter, name in NAMES.items()}


def build(prefix: Path, documents: list[list[Any]], dtype: Any = np.uint16) -> None:
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        for sequence in document:
            builder.add_item(sequence)
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


@st.composite
def datasets(draw: st.DrawFn) -> tuple[str, list[list[list[int]]]]:
    dtype = draw(st.sampled_from(sorted(LETTERS)))
    limits = np.iinfo(dtype)
    token = st.one_of(
        st.sampled_from([int(limits.min), 0, int(limits.max)]),
        st.integers(int(limits.min), int(limits.max)),
    )
    return dtype, draw(st.lists(st.lists(st.lists(token, max_size=4), max_size=3), max_size=6))


@pytest.mark.promises
@settings(max_examples=80, deadline=None)
@given(dataset=datasets(), as_array=st.booleans())
def test_what_is_built_is_what_the_twin_writes(
    dataset: tuple[str, list[list[list[int]]]],
    as_array: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    dtype, documents = dataset
    prefix, twin = (tmp_path_factory.getbasetemp() / name for name in ("built", "twin"))
    convert = np.array if as_array else list
    items = [[convert(sequence) for sequence in document] for document in documents]
    build(prefix, items, dtype)
    sequences = [sequence for document in documents for sequence in document]
    ends = np.cumsum([0, *(len(document) for document in documents)]).tolist()
    write_plainly(twin, Plain(LETTERS[dtype], sequences, ends))
    for suffix in (".bin", ".idx"):
        assert Path(f"{prefix}{suffix}").read_bytes() == Path(f"{twin}{suffix}").read_bytes()
    read = MMapIndexedDataset(prefix, verify=True)
    assert [sequence.tolist() for sequence in read] == sequences


def test_a_real_dataset_is_rebuilt_to_the_byte(data: Path, tmp_path: Path) -> None:
    large = data / "megatron" / "meg-gpt2-openwebtext_text_document"
    name = large if large.parent.is_dir() else data / "index" / "short"
    source = MMapIndexedDataset(name)
    build(tmp_path / "again", [[sequence] for sequence in source], source.dtype)
    for suffix in (".bin", ".idx"):
        assert (
            Path(f"{tmp_path}/again{suffix}").read_bytes() == Path(f"{name}{suffix}").read_bytes()
        )


def test_the_default_dtype_is_int64(tmp_path: Path) -> None:
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "x.bin"))
    assert builder.dtype == np.int64
    builder.abandon()


class Tensor:
    """What a tensor library's array gives to numpy."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array([3, 70000], dtype or np.int64)


@pytest.mark.parametrize(("size", "dtype"), [(50_257, "uint16"), (65_536, "int32")])
def test_a_tokenizer_gives_the_dtype_of_encode(tmp_path: Path, size: int, dtype: str) -> None:
    tokenizer = SimpleNamespace(vocab_size=size)
    with MMapIndexedDatasetBuilder(tmp_path / "x.bin", tokenizer=tokenizer) as builder:
        assert builder.dtype == dtype
    with MMapIndexedDatasetBuilder(tmp_path / "x.bin", np.int64, tokenizer=tokenizer) as builder:
        assert builder.dtype == np.int64
    with pytest.raises(UsageError, match="'gpt2'"):
        MMapIndexedDatasetBuilder(tmp_path / "x.bin", tokenizer="gpt2")  # type: ignore[arg-type]


def test_anything_that_is_an_array_can_be_added(tmp_path: Path) -> None:
    items = [
        Tensor(),
        range(2),
        (5,),
        np.arange(9)[::4],
        np.array([[1, 2], [3, 4]]),
        [],
        np.array(7),
    ]
    build(tmp_path / "x", [items], np.int32)
    expected = [[3, 70000], [0, 1], [5], [0, 4, 8], [1, 2, 3, 4], [], [7]]
    assert read_plainly(tmp_path / "x").sequences == expected


def test_a_torch_tensor_can_be_added(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    build(tmp_path / "x", [[torch.tensor([3, 65535]), torch.IntTensor([])]])
    assert read_plainly(tmp_path / "x").sequences == [[3, 65535], []]
    builder = MMapIndexedDatasetBuilder(tmp_path / "y.bin", np.uint16)
    with builder, pytest.raises(UsageError, match=r"y\.bin: .*\b70000\b"):
        builder.add_item(torch.tensor([3, 70000]))


@pytest.mark.parametrize("convert", [list, np.array, np.uint64])
@pytest.mark.parametrize(
    ("dtype", "bad"), [("uint16", 70000), ("uint16", 65536), ("int32", 2**31), ("uint8", 256)]
)
def test_an_id_that_does_not_fit_is_named(
    dtype: str, bad: int, convert: Any, tmp_path: Path
) -> None:
    with MMapIndexedDatasetBuilder(tmp_path / "x.bin", dtype) as builder:
        builder.add_item([1, 2])
        with pytest.raises(UsageError, match=rf" {bad} in sequence 1 .*\b{dtype} "):
            builder.add_item(convert([1, bad, 0]))
        low = -1 if dtype != "int32" else -(2**31) - 1
        with pytest.raises(UsageError, match=rf" {low} in sequence 1 .*\b{dtype} "):
            builder.add_item([low])
        builder.add_item([3])
        builder.finalize(tmp_path / "x.idx")
    assert read_plainly(tmp_path / "x").sequences == [[1, 2], [3]]


def test_documents_may_be_empty_and_the_last_need_not_be_ended(tmp_path: Path) -> None:
    with MMapIndexedDatasetBuilder(tmp_path / "x.bin", np.uint16) as builder:
        builder.end_document()
        builder.add_item([])
        builder.end_document()
        builder.end_document()
        builder.add_item([1])
        builder.add_item([2])
        builder.finalize(tmp_path / "x.idx")
    assert read_plainly(tmp_path / "x") == Plain("H", [[], [1], [2]], [0, 0, 1, 1, 3])


def test_merging_joins_tokens_sequences_and_documents(tmp_path: Path) -> None:
    parts = [[[[1, 2], [3]], []], [], [[[]], [[4, 5]]]]
    for number, documents in enumerate(parts):
        build(tmp_path / f"part{number}", documents)
    with MMapIndexedDatasetBuilder(tmp_path / "all.bin", np.uint16) as builder:
        builder.add_item([9])
        for number in range(3):
            builder.merge_file_(tmp_path / f"part{number}")
        builder.add_item([8])
        builder.finalize(tmp_path / "all.idx")
    build(tmp_path / "once", [[[9]], *(document for part in parts for document in part), [[8]]])
    for suffix in (".bin", ".idx"):
        whole = (tmp_path / f"all{suffix}").read_bytes()
        assert whole == (tmp_path / f"once{suffix}").read_bytes()


@pytest.mark.promises
def test_nothing_has_its_name_before_finalize(tmp_path: Path) -> None:
    builder = MMapIndexedDatasetBuilder(tmp_path / "x.bin")
    builder.add_item([1])
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin.tokpack.tmp"]
    assert not MMapIndexedDataset.exists(tmp_path / "x")
    builder.finalize(tmp_path / "x.idx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]
    builder.abandon()
    for use in (
        lambda: builder.add_item([1]),
        builder.end_document,
        lambda: builder.finalize("x"),
        lambda: builder.merge_file_("x"),
    ):
        with pytest.raises(UsageError):
            use()
    assert read_plainly(tmp_path / "x").sequences == [[1]]


def test_an_exception_abandons_what_was_written_and_keeps_what_was_there(tmp_path: Path) -> None:
    build(tmp_path / "x", [[[7]]])
    with (
        pytest.raises(UsageError, match=r"x\.bin: .*\b70000\b"),
        MMapIndexedDatasetBuilder(tmp_path / "x.bin", np.uint16) as builder,
    ):
        builder.add_item([1, 70000])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]
    assert read_plainly(tmp_path / "x").sequences == [[7]]
    build(tmp_path / "x", [[[8, 9]]])
    assert read_plainly(tmp_path / "x").sequences == [[8, 9]]


def test_of_two_writers_of_one_file_the_first_fails(tmp_path: Path) -> None:
    first = MMapIndexedDatasetBuilder(tmp_path / "x.bin", np.uint16)
    second = MMapIndexedDatasetBuilder(tmp_path / "x.bin", np.uint16)
    first.add_item([1])
    second.add_item([2, 2])
    with first, pytest.raises(OutputError, match=r"x\.bin\.tokpack\.tmp"):
        first.finalize(tmp_path / "x.idx")
    second.finalize(tmp_path / "x.idx")
    assert read_plainly(tmp_path / "x").sequences == [[2, 2]]


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    head = (
        "import os, signal\nimport numpy as np\n"
        "from tokpack.dataset import MMapIndexedDatasetBuilder\n"
        f"os.chdir({str(folder)!r})\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", head + code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: write() fails in the same way."""
    lengths = np.ones(300_000, int)
    index = index_chunks("u2", lengths, np.array([0, len(lengths)]))

    def write() -> None:
        with MMapIndexedDatasetBuilder(tmp_path / "x.bin") as builder:
            for _ in range(1000):
                builder.add_item(np.zeros(1000, int))
            builder.finalize(tmp_path / "x.idx")

    with limited(resource.RLIMIT_FSIZE, 3_000_000):
        with pytest.raises(OutputError, match=r"x\.bin: File too large"):
            write()
        with pytest.raises(OutputError, match=r"y\.idx: File too large"):
            replace_file(str(tmp_path / "y.idx"), index)
    assert not list(tmp_path.iterdir())


def test_an_earlier_failed_write_cannot_be_committed(tmp_path: Path) -> None:
    builder = MMapIndexedDatasetBuilder(tmp_path / "x.bin", "u1")
    with (
        limited(resource.RLIMIT_FSIZE, 3_000_000),
        pytest.raises(OutputError, match=r"x\.bin: File too large"),
    ):
        builder.add_item(np.zeros(5_000_000, "u1"))
    with pytest.raises(UsageError, match=r"x\.bin"):
        builder.finalize(tmp_path / "x.idx")
    assert not list(tmp_path.iterdir())


def test_a_killed_builder_leaves_no_dataset_and_no_obstacle(tmp_path: Path) -> None:
    build(tmp_path / "old", [[[7]]])
    code = """
for name in ("x", "old"):
    builder = MMapIndexedDatasetBuilder(name + ".bin", "u2")
    builder.add_item(np.ones(2_000_000, int))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(code, tmp_path).returncode == -signal.SIGKILL
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["old.bin", "old.bin.tokpack.tmp", "old.idx", "x.bin.tokpack.tmp"]
    assert read_plainly(tmp_path / "old").sequences == [[7]]
    build(tmp_path / "x", [[[1]]])
    assert read_plainly(tmp_path / "x").sequences == [[1]]
    assert not (tmp_path / "x.bin.tokpack.tmp").exists()


def test_a_builder_takes_four_bytes_a_sequence(tmp_path: Path) -> None:
    code = """
import tracemalloc
builder = MMapIndexedDatasetBuilder("x.bin", "u2")
item = np.zeros(0, "u2")
tracemalloc.start()
for _ in range(40_000):
    builder.add_item(item)
print(tracemalloc.get_traced_memory()[0])
builder.abandon()
"""
    done = run(code, tmp_path)
    assert done.stderr == ""
    assert int(done.stdout) < 40_000 * 5

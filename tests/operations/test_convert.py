"""Convert: to another format and back is the same dataset; what is broken is refused."""

from __future__ import annotations

import json
import struct
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.cli_tools import tokpack
from support.converting import run, same
from support.documents import DOCUMENTS, Documents, documents_of, plain
from support.indexed_twin import read_plainly, write_plainly

from tokpack.dataset import Manifest, MMapIndexedDataset
from tokpack.dataset.merge import merge
from tokpack.errors import FormatError
from tokpack.formats.conversion import detect


@settings(max_examples=40, deadline=None)
@example(documents=[[[65535, 65535]]], letter="H")  # which is the mark of an Arrow stream
@given(documents=DOCUMENTS, letter=st.sampled_from("Hi"))
def test_datatrove_and_parquet_and_back(documents: Documents, letter: str) -> None:
    whole = [[[token for sequence in document for token in sequence]] for document in documents]
    rows = [document[0] for document in whole]
    with tempfile.TemporaryDirectory() as folder:
        write_plainly(f"{folder}/all", plain(documents, letter))
        made = run(f"{folder}/all", f"{folder}/x.ds")
        assert made.documents == len(rows)
        tokens = [token for row in rows for token in row]
        form = {"H": "H", "i": "I"}[letter]
        assert Path(f"{folder}/x.ds").read_bytes() == struct.pack(f"<{len(tokens)}{form}", *tokens)
        ends = [sum(map(len, rows[: number + 1])) for number in range(len(rows))]
        packed = struct.pack(f"<{len(ends)}Q", *ends)
        assert Path(f"{folder}/x.ds.index").read_bytes() == packed
        lines = Path(f"{folder}/x.ds.metadata").read_text().split("\n")
        width = struct.calcsize(form)
        assert lines[:2] == [f"Unknown Tokenizer|{width}", str(len(tokens))]
        run(f"{folder}/x.ds", f"{folder}/again")
        assert documents_of(f"{folder}/again") == whole
        pytest.importorskip("pyarrow")
        from pyarrow import parquet

        run(f"{folder}/all", f"{folder}/x.parquet")
        assert parquet.read_table(f"{folder}/x.parquet").to_pydict() == {"input_ids": rows}
        run(f"{folder}/x.parquet", f"{folder}/back")
        same(f"{folder}/back", f"{folder}/again")


@settings(max_examples=40, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(1, 65535), max_size=5), min_size=1, max_size=8),
    target=st.sampled_from(["npy", "raw"]),
)
def test_one_run_of_ids_and_back(documents: list[list[int]], target: str) -> None:
    ended = [[[*document, 0]] for document in documents]
    with tempfile.TemporaryDirectory() as folder:
        write_plainly(f"{folder}/all", plain(ended))
        run(f"{folder}/all", f"{folder}/x.npy", to=target)
        if target == "npy":
            ids = np.load(f"{folder}/x.npy").tolist()
        else:
            ids = np.fromfile(f"{folder}/x.npy", "<u2").tolist()
        assert ids == [token for document in ended for token in document[0]]
        options = {"from_": "raw", "input_dtype": "uint16"} if target == "raw" else {}
        run(f"{folder}/x.npy", f"{folder}/again", eod=0, **options)
        same(f"{folder}/again", f"{folder}/all")


@pytest.mark.parametrize(
    "name", ["megatron/meg-gpt2-openwebtext_text_document", "index/eod", "index/edge"]
)
def test_real_datasets_go_through_datatrove(name: str, shared: Path, tmp_path: Path) -> None:
    dataset = MMapIndexedDataset(shared / name)
    run(shared / name, tmp_path / "x.ds")
    run(tmp_path / "x.ds", tmp_path / "back", dtype=str(dataset.dtype))
    assert MMapIndexedDataset(tmp_path / "back").tokens.tolist() == dataset.tokens.tolist()
    if len(dataset) == len(dataset.doc_idx) - 1:  # sequences of a document are joined
        same(tmp_path / "back", shared / name)


def test_any_format_becomes_any_other(tmp_path: Path) -> None:
    """Without .bin/.idx between, documents of no ids and row groups of several parts included."""
    pytest.importorskip("pyarrow")
    documents = [[[1, 0]], [[2, 3, 0]], [[0]]]
    np.array([1, 0, 2, 3, 0, 0], "<u2").tofile(tmp_path / "x.raw")
    run(tmp_path / "x.raw", tmp_path / "a.ds", from_="raw", input_dtype="uint16", eod=0)
    run(tmp_path / "a.ds", tmp_path / "b.parquet")
    run(tmp_path / "b.parquet", tmp_path / "c.npy", to="olmo", eod=0)
    made = run(tmp_path / "c.npy", tmp_path / "d.npy", from_="olmo", to="npy")
    assert (made.documents, made.tokens, made.dtype) == (3, 6, "uint16")
    run(tmp_path / "d.npy", tmp_path / "e", eod=0)
    assert documents_of(tmp_path / "e") == documents
    (tmp_path / "a.ds.loss").write_bytes(bytes(6))
    (*_, note) = run(tmp_path / "a.ds", tmp_path / "f.npy", to="npy").notes
    assert "mask of tokens is left out" in note
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokpack.formats.lists._GROUP_IDS", 2)
        patch.setattr("tokpack.formats.foreign.STEP", 2)
        run(tmp_path / "e", tmp_path / "g.parquet")
    run(tmp_path / "g.parquet", tmp_path / "h")
    assert documents_of(tmp_path / "h") == documents


def test_dtypes_change_and_ids_never_wrap(tmp_path: Path) -> None:
    write_plainly(tmp_path / "all", plain([[[1, 65535], []], [], [[7]]]))
    made = run(tmp_path / "all", tmp_path / "wide", dtype="int32")
    assert read_plainly(tmp_path / "wide") == plain([[[1, 65535], []], [], [[7]]], "i")
    assert (made.documents, made.sequences, made.tokens, made.dtype) == (3, 3, 3, "int32")
    run(tmp_path / "wide", tmp_path / "again", dtype="uint16")
    same(tmp_path / "again", tmp_path / "all")


def test_a_manifest_is_kept_and_one_is_made(tmp_path: Path) -> None:
    write_plainly(tmp_path / "x", plain([[[1]], [[2, 3]]]))
    merge([str(tmp_path / "x")], str(tmp_path / "all"))
    kept = Manifest.load(tmp_path / "all")
    run(tmp_path / "all", tmp_path / "wide", dtype="int32")
    made = Manifest.load(tmp_path / "wide")
    assert (made.inputs, made.documents, made.dtype) == (kept.inputs, 2, "int32")
    assert (made.bin["bytes"], made.options["dtype"]) == (12, "int32")
    np.save(tmp_path / "two.npy", np.arange(6, dtype=np.uint16).reshape(2, 3))
    run(tmp_path / "two.npy", tmp_path / "rows")
    made = Manifest.load(tmp_path / "rows")
    assert documents_of(tmp_path / "rows") == [[[0, 1, 2]], [[3, 4, 5]]]
    assert (made.inputs[0]["name"], made.inputs[0]["format"]) == ("two.npy", "npy")


def test_masks_of_datatrove(tmp_path: Path) -> None:
    write_plainly(tmp_path / "all", plain([[[5, 6, 7]], [[]], [[8, 60000]]]))
    run(tmp_path / "all", tmp_path / "x.ds")
    loss = tmp_path / "x.ds.loss"
    loss.write_bytes(bytes([0, 1, 1, 0, 1]))
    made = run(tmp_path / "x.ds", tmp_path / "out")
    assert documents_of(tmp_path / "out") == documents_of(tmp_path / "all")
    assert (tmp_path / "out.mask").read_bytes() == loss.read_bytes()
    names = ["out.bin", "out.idx", "out.mask", "out.json"]
    assert [Path(path).name for path in made.paths] == names


def test_shards_of_llm_c(tmp_path: Path) -> None:
    for magic, version, dtype, eod in ((20240520, 1, "<u2", 50256), (20240801, 7, "<u4", 128000)):
        ids = [8, 9, eod, 1, 2, eod, eod, 3]  # a shard may begin inside a document
        head = np.zeros(256, "<i4")
        head[:3] = magic, version, len(ids)
        (tmp_path / "s.bin").write_bytes(head.tobytes() + np.array(ids, dtype).tobytes())
        assert detect(str(tmp_path / "s.bin")) == "llm.c"
        run(tmp_path / "s.bin", tmp_path / "out", overwrite=True)
        assert documents_of(tmp_path / "out") == [[[8, 9]], [[eod, 1, 2]], [[eod]], [[eod, 3]]]


def test_numpy_files_of_every_order(tmp_path: Path) -> None:
    rows = np.arange(6).reshape(2, 3)
    for array in (rows.astype(">u2"), np.asfortranarray(rows.astype(np.uint32)), rows[:, ::-1]):
        np.save(tmp_path / "x.npy", array)
        made = run(tmp_path / "x.npy", tmp_path / "out", overwrite=True)
        assert documents_of(tmp_path / "out") == [[row] for row in array.tolist()]
        assert made.dtype == ("uint16" if array.dtype == ">u2" else "int32")
    np.save(tmp_path / "x.npy", np.zeros((3, 0), np.uint8))
    run(tmp_path / "x.npy", tmp_path / "out", overwrite=True)
    assert MMapIndexedDataset(tmp_path / "out").sizes.tolist() == [0, 0, 0]
    right = (tmp_path / "x.npy").read_bytes()
    for shape in (b"(2, 5)", b"(9999999999999, 9)", b"(-1, 2)", b"(2**9,)", b"(1.5,)", b"('a',)"):
        changed = right.replace(b"(3, 0), }", shape + b", }")
        size = int.from_bytes(changed[8:10], "little") + len(changed) - len(right)
        (tmp_path / "y.npy").write_bytes(changed[:8] + size.to_bytes(2, "little") + changed[10:])
        with pytest.raises(FormatError, match=r"y\.npy"):
            run(tmp_path / "y.npy", tmp_path / "no")
    assert not list(tmp_path.glob("no*"))


def test_parquet_columns(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(**columns: Any) -> Path:
        parquet.write_table(arrow.table(columns), tmp_path / "x.parquet", row_group_size=2)
        return tmp_path / "x.parquet"

    lists = [[1, 2], [], [70000]]
    for kind in (
        arrow.list_(arrow.int64()),
        arrow.large_list(arrow.uint32()),
    ):
        made = run(write(ids=arrow.array(lists, kind)), tmp_path / "out", overwrite=True)
        assert documents_of(tmp_path / "out") == [[row] for row in lists]
        assert made.dtype == "int32"
    fixed = arrow.array([[1, 2], [3, 4]], arrow.list_(arrow.uint16(), 2))
    run(write(ids=fixed, text=["a", "b"]), tmp_path / "out", overwrite=True)
    assert documents_of(tmp_path / "out") == [[[1, 2]], [[3, 4]]]


def test_a_parquet_column_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_plainly(tmp_path / "a", plain([[[1, 2]], [[3]], [[4, 5, 6]]]))
    run(tmp_path / "a", tmp_path / "x.parquet")
    reads, plainly = list[object](), parquet.ParquetFile.iter_batches

    def counted(self: Any, **options: Any) -> Any:
        reads.append(options)
        return plainly(self, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    told: list[tuple[int, int]] = []
    run(
        tmp_path / "x.parquet", tmp_path / "b", progress=lambda at: told.append((at.done, at.total))
    )
    assert len(reads) == 1
    assert told[-1] == (6, 0)
    assert read_plainly(tmp_path / "b").sequences == read_plainly(tmp_path / "a").sequences


def test_the_command(tmp_path: Path) -> None:
    write_plainly(tmp_path / "all", plain([[[1, 2]], [[3]]]))

    command = partial(tokpack, "convert", cwd=tmp_path)
    done = command("all.idx", "x.npy", "--to", "npy")
    assert (done.returncode, done.stdout) == (0, "x.npy\n")
    assert "note: the file does not say where documents end" in done.stderr
    done = command("x.npy", "out", "--eod", "3", "--json", "-q")
    assert done.stderr == ""
    made = json.loads(done.stdout)
    assert (made["documents"], made["tokens"], made["target"]) == (1, 3, "mmap")
    for wrong, message in (
        (["all"], "convert INPUT OUTPUT"),
        (["all", "b", "--dtype", "x"], "choose from"),
    ):
        done = command(*wrong)
        assert done.returncode == 1
        assert message in done.stderr

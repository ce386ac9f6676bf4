"""What convert refuses: hostile files, and requests that do not tell enough."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.converting import pack_lazy, run, same
from support.documents import documents_of, plain
from support.indexed_twin import Plain, write_plainly

from tokpack.errors import FormatError, InputError, OutputError, UsageError


def test_hostile_lazy_indices(tmp_path: Path) -> None:
    right = Plain("i", [[1, 2], [], [3]], [0, 1, 3])
    index = pack_lazy(right)
    write_plainly(tmp_path / "x", right)
    path = tmp_path / "x.idx"

    def refused(data: bytes) -> bool:
        path.write_bytes(data)
        try:
            run(tmp_path / "x", tmp_path / "out", from_="lazy")
        except FormatError as error:
            return str(path) in str(error)
        return False

    assert all(refused(index[:size]) for size in range(len(index)))
    assert refused(index + b"\0" * 8)
    extremes = (-(2**63), -1, 2, 7, 2**31, 2**32, 2**62, 2**63 - 1)
    tracemalloc.start()
    for at in range(8, len(index), 8):  # every field of the header and of the arrays
        for value in extremes:
            field = struct.pack("<q", value)
            changed = index[:at] + field + index[at + 8 :]
            if changed != index and not refused(changed):
                found = documents_of(tmp_path / "out")  # another right index: of the documents
                assert [s for document in found for s in document] == right.sequences
                for made in tmp_path.glob("out*"):
                    made.unlink()
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert not list(tmp_path.glob("out*"))
    path.write_bytes(index)
    run(tmp_path / "x", tmp_path / "out")
    assert documents_of(tmp_path / "out") == [[[1, 2]], [[], [3]]]


def test_broken_files_of_other_formats(tmp_path: Path) -> None:
    write_plainly(tmp_path / "all", plain([[[1, 2]], [[3]]]))
    run(tmp_path / "all", tmp_path / "x.ds")
    index = Path(f"{tmp_path}/x.ds.index").read_bytes()
    for data, message in (
        (struct.pack("<2Q", 3, 2), "belong together"),
        (struct.pack("<3Q", 3, 2, 3), "document 1 ends before it begins"),
        (struct.pack("<Q", 2**63), "belong together"),
        (index[:-1], "not a whole number"),
    ):
        Path(f"{tmp_path}/x.ds.index").write_bytes(data)
        with pytest.raises(FormatError, match=message):
            run(tmp_path / "x.ds", tmp_path / "no")
    Path(f"{tmp_path}/x.ds.index").write_bytes(index)
    for text in ("gpt2|3\n3\n", "gpt2|2\nmany\n", "gpt2|4\n3\n", ""):
        Path(f"{tmp_path}/x.ds.metadata").write_text(text)
        with pytest.raises(FormatError, match=r"x\.ds"):
            run(tmp_path / "x.ds", tmp_path / "no")
    os.unlink(f"{tmp_path}/x.ds.metadata")
    run(tmp_path / "x.ds", tmp_path / "again")  # it can do without
    same(tmp_path / "again", tmp_path / "all")

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "pickle was loaded"),)

    np.save(tmp_path / "evil.npy", np.array([Evil()], object), allow_pickle=True)
    np.save(tmp_path / "float.npy", np.zeros(3))
    np.save(tmp_path / "deep.npy", np.zeros((1, 1, 1), np.int32))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "deep.npy").read_bytes()[:-1])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + b"\0" * 40 + b"PAR1")
    for name in ("evil.npy", "float.npy", "deep.npy", "cut.npy", "bad.parquet"):
        with pytest.raises(FormatError, match=name):
            run(tmp_path / name, tmp_path / "no")
    assert not (tmp_path / "pickle was loaded").exists()
    (tmp_path / "h.idx").write_bytes(b"HUFFIDX\0\0" + b"\0" * 40)
    with pytest.raises(FormatError, match="Huffman"):
        run(tmp_path / "h", tmp_path / "no")
    assert not list(tmp_path.glob("no*"))


def test_what_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    write_plainly(tmp_path / "all", plain([[[1, 2, 0]]]))
    raw = tmp_path / "raw.bin"
    raw.write_bytes((tmp_path / "all.bin").read_bytes())
    out = tmp_path / "out"
    for source, options, message in (
        (raw, {}, "nothing in it tells its format"),
        (raw, {"from_": "raw"}, "add --input-dtype uint16"),
        (raw, {"from_": "raw", "input_dtype": "uint16"}, "add --eod ID"),
        (raw, {"from_": "raw", "input_dtype": "uint16", "eod": 9}, "none of the 3 ids is 9"),
        (raw, {"from_": "raw", "input_dtype": "odd", "eod": 9}, "no type 'odd'"),
        (raw, {"from_": "cooked"}, "no format 'cooked'"),
        (raw, {"to": "cooked"}, "no format 'cooked'"),
        (raw, {"from_": "raw", "to": "npy"}, "two steps"),
        (tmp_path / "all", {}, "in the mmap format already"),
        (tmp_path / "all", {"to": "lazy", "dtype": "uint16"}, "lazy cannot hold uint16"),
        (tmp_path / "all", {"dtype": "float32"}, "cannot be stored as float32"),
    ):
        with pytest.raises(UsageError, match=message):
            run(source, out, **options)
    with pytest.raises(FormatError, match="not a whole number of uint32"):
        run(raw, out, from_="raw", input_dtype="uint32", eod=0)
    with pytest.raises(InputError, match="no such file, nor"):
        run(tmp_path / "nothing", out)
    with pytest.raises(UsageError, match="is an input and an output"):
        run(raw, tmp_path / "raw", from_="raw", input_dtype="uint16", eod=0, overwrite=True)
    for target, name in (("lazy", "old"), ("npy", "old.npy"), ("datatrove", "old.ds")):
        (tmp_path / (name if target != "lazy" else "old.idx")).write_text("precious")
        with pytest.raises(OutputError, match="exists"):
            run(tmp_path / "all", tmp_path / name, to=target)
    assert not list(tmp_path.glob("out*"))

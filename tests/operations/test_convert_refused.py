"""What convert refuses: hostile files, and requests that do not tell enough."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.converting import run, same
from support.documents import plain
from support.indexed_twin import write_plainly
from support.places import GOLDEN

from tokpack.errors import FormatError, InputError, OutputError, UsageError


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
    assert not list(tmp_path.glob("no*"))


def test_indices_of_other_programs_are_refused_by_name(tmp_path: Path) -> None:
    for name, message in (
        ("lazy", "'lazy' or 'cached' format of fairseq and Megatron, which tokpack does not read"),
        ("fairseq", "fairseq's format, which tokpack does not read; encode the text again"),
        ("huffman", "fairseq's Huffman-coded format; encode the text again"),
    ):
        with pytest.raises(FormatError, match=message):
            run(GOLDEN / "broken" / name, tmp_path / "no")
    assert not list(tmp_path.iterdir())


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
        (tmp_path / "all", {}, "in the mmap format already"),
        (tmp_path / "all", {"to": "datatrove", "dtype": "int32"}, "datatrove cannot hold int32"),
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
    for target, name in (("npy", "old.npy"), ("datatrove", "old.ds")):
        (tmp_path / name).write_text("precious")
        with pytest.raises(OutputError, match="exists"):
            run(tmp_path / "all", tmp_path / name, to=target)
    assert not list(tmp_path.glob("out*"))

"""Datasets of dolma and OLMo-core: ids in a .npy without a header, documents in a .csv.gz."""

from __future__ import annotations

import gzip
import struct
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broken_datasets import EOD, FLAT, make, manifest_of
from support.converting import run, same
from support.documents import documents_of, plain
from support.indexed_twin import write_plainly

from tokpack.errors import FormatError, InputError


@settings(max_examples=20, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=8),
    letter=st.sampled_from("Hi"),
)
def test_there_and_back(documents: list[list[int]], letter: str) -> None:
    ended = [[*document, 7] for document in documents]
    with tempfile.TemporaryDirectory() as folder:
        write_plainly(f"{folder}/all", plain([[ids] for ids in ended], letter))
        made = run(f"{folder}/all", f"{folder}/x.npy", to="olmo", eod=7)
        tokens = [token for ids in ended for token in ids]
        form, dtype = {"H": ("H", "uint16"), "i": ("I", "uint32")}[letter]
        assert (made.paths, made.dtype) == ([f"{folder}/x.csv.gz", f"{folder}/x.npy"], dtype)
        assert Path(f"{folder}/x.npy").read_bytes() == struct.pack(f"<{len(tokens)}{form}", *tokens)
        ends = [sum(map(len, ended[:number])) for number in range(len(ended) + 1)]
        rows = "".join(f"{a},{b}\n" for a, b in pairwise(ends))
        assert gzip.decompress(Path(f"{folder}/x.csv.gz").read_bytes()).decode() == rows
        run(f"{folder}/x.npy", f"{folder}/back", from_="olmo")
        assert documents_of(f"{folder}/back") == [[ids] for ids in ended]
        Path(f"{folder}/x.csv.gz").unlink()
        if documents and not any(7 in document for document in documents):
            run(f"{folder}/x.npy", f"{folder}/cut", from_="olmo", input_dtype=dtype, eod=7)
            same(f"{folder}/cut", f"{folder}/back")


def test_what_dolma_writes_is_read(tmp_path: Path) -> None:
    np.array([5, 6, 0, 7, 0], "<u4").tofile(tmp_path / "part-0-00000.npy")
    rows = '0,3,"an id, and\nmore",s3://bucket/a.jsonl.gz,1\r\n3,5,b,s3://bucket/a.jsonl.gz,2\r\n'
    (tmp_path / "part-0-00000.csv.gz").write_bytes(gzip.compress(rows.encode()))
    run(tmp_path / "part-0-00000.npy", tmp_path / "out", from_="olmo")
    assert documents_of(tmp_path / "out") == [[[5, 6, 0]], [[7, 0]]]


def test_documents_must_end_with_the_eod(tmp_path: Path) -> None:
    make(tmp_path / "x", FLAT)
    assert run(tmp_path / "x", tmp_path / "x.npy", to="olmo").dtype == "uint16"
    manifest_of(FLAT, tmp_path / "x", tokenizer={"vocab_size": 65537, "eod_id": EOD}).save(
        tmp_path / "x"
    )
    made = run(tmp_path / "x", tmp_path / "x.npy", to="olmo", overwrite=True)
    assert made.dtype == "uint32"  # as OLMo-core takes for granted with such a vocabulary
    (tmp_path / "x.json").unlink()
    write_plainly(tmp_path / "gaps", plain([[], [[1], [9]], [[], []], [[9]]]))
    made = run(tmp_path / "gaps", tmp_path / "y.npy", to="olmo", eod=9)
    assert made.notes == [
        "2 documents without ids are left out",
        "the sequences of a document were joined: the format knows documents only",
    ]
    assert gzip.decompress((tmp_path / "y.csv.gz").read_bytes()) == b"0,2\n2,3\n"


@pytest.mark.parametrize(
    "rows",
    [
        *("", "0,2\n", "0,6\n", "0,3\n4,5\n", "0,3\n3,3\n3,5\n", "1,5\n", "0\n5\n", "0,x\n", "\n"),
        *("0,-5\n", "0,5\n5,9\n", "0," + "9" * 5000, '0,"5' + "5" * 200_000),
    ],
)
def test_wrong_lines(rows: str, tmp_path: Path) -> None:
    np.array([5, 6, 0, 7, 0], "<u2").tofile(tmp_path / "x.npy")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(rows.encode()))
    with pytest.raises(FormatError, match=r"x\.csv\.gz"):
        run(tmp_path / "x.npy", tmp_path / "no", from_="olmo")
    assert not list(tmp_path.glob("no*"))


def test_a_damaged_gzip(tmp_path: Path) -> None:
    np.array([5, 6, 0, 7, 0], "<u2").tofile(tmp_path / "x.npy")
    whole = gzip.compress(b"0,3\n3,5\n")
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x55
        for data in (whole[:at], bytes(changed)):
            (tmp_path / "x.csv.gz").write_bytes(data)
            try:
                run(tmp_path / "x.npy", tmp_path / "out", from_="olmo", overwrite=True)
            except (FormatError, InputError):
                continue
            assert documents_of(tmp_path / "out") == [[[5, 6, 0]], [[7, 0]]]

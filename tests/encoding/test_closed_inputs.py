"""Inputs are closed by the time a run ends, also where an error that somebody keeps ended it."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

import tokpack
from tokpack.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in ("one", "two", 3))


def _jsonl(folder: Path) -> Path:
    path = folder / "a.jsonl"
    path.write_bytes(LINES)
    return path


def _zst(folder: Path) -> Path:
    path = folder / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(LINES))
    return path


def _csv(folder: Path) -> Path:
    path = folder / "a.csv"
    path.write_text("text,title\none,two\nthree\n")
    return path


def _archive(folder: Path) -> Path:
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jsonl", LINES)
    return path


def _parquet(folder: Path) -> Path:
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", None]}), path)
    return path


def _open_in(folder: Path) -> list[str]:
    """Files of the folder that this process has open."""
    opened = []
    for number in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing itself
            continue
    return [path for path in opened if path.startswith(f"{folder}{os.sep}")]


@pytest.mark.skipif(sys.platform != "linux", reason="open files are listed in /proc")
@pytest.mark.parametrize("make", [_jsonl, _zst, _csv, _archive, _parquet])
@pytest.mark.parametrize("where", [None, "text != 'one'"])
def test_a_bad_record_leaves_no_input_open(
    tmp_path: Path, bpe: Path, make: Callable[[Path], Path], where: str | None
) -> None:
    path = make(tmp_path)
    with pytest.raises(RecordError) as caught:
        tokpack.encode([path], tmp_path / "out", tokenizer=str(bpe), workers=1, where=where)
    assert caught.value.__traceback__ is not None  # with the frames that were reading
    assert _open_in(tmp_path) == []

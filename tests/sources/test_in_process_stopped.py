"""Runs over documents of this process that stop, and go on."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import forked
from support.encoding_tools import dataset, pieces, write_jsonl
from support.faults import PLANT
from support.in_process_tools import TEXTS, segments

import tokpack
from tokpack.errors import ResumeError

if TYPE_CHECKING:
    from collections.abc import Iterator

pa = pytest.importorskip("pyarrow", reason="needs the parquet extra")


class OwnError(Exception):
    pass


def stops(output: Path, *, least: int = 2) -> Iterator[str]:
    """The documents, until the run has stored some; then an error."""
    for text in TEXTS * 20:
        if Path(f"{output}.unfinished/journal.jsonl").exists() and len(pieces(output)) >= least:
            raise OwnError
        yield text


def test_an_iterable_that_fails(tmp_path: Path, bpe: Path, small_parts: None) -> None:
    output = tmp_path / "out"
    options: dict[str, Any] = {"tokenizer": bpe, "workers": 2}
    whole = write_jsonl(tmp_path / "whole.jsonl", TEXTS * 20)
    tokpack.encode(whole, tmp_path / "whole", **options)
    with pytest.raises(OwnError) as caught:
        tokpack.encode(stops(output), output, resume_key="mine", **options)
    assert caught.traceback[-1].name == "stops"
    with pytest.raises(ResumeError, match=r"out\.unfinished .*: it has a resume_key\."):
        tokpack.encode(iter(TEXTS * 20), output, **options)
    with pytest.raises(ResumeError, match=r"^documents \d+ to \d+ .*out\.unfinished:"):
        tokpack.encode(iter(["another", *TEXTS] * 20), output, resume_key="mine", **options)
    plan_ = json.loads(Path(f"{output}.unfinished/plan.json").read_text())
    first = segments(iter(TEXTS * 20), plan_["parts"][0]["end"], 1 << 20)[0].records
    for fewer in (TEXTS[:1], (TEXTS * 20)[:first]):
        with pytest.raises(ResumeError, match=r"\bdocuments .*out\.unfinished:"):
            tokpack.encode(iter(fewer), output, resume_key="mine", **options)


def test_a_run_without_a_resume_key_never_goes_on(
    tmp_path: Path, bpe: Path, small_parts: None
) -> None:
    output = tmp_path / "out"
    options: dict[str, Any] = {"tokenizer": bpe, "workers": 2}
    with pytest.raises(OwnError):
        tokpack.encode(stops(output), output, **options)
    for key, said in ((None, r"without a resume_key"), ("mine", r"\bno resume_key\b")):
        with pytest.raises(ResumeError, match=said):
            tokpack.encode(iter(TEXTS * 20), output, resume_key=key, **options)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_iterable_goes_on_where_it_was(
    workers: int, tmp_path: Path, bpe: Path, small_parts: None
) -> None:
    output = tmp_path / "out"
    options: dict[str, Any] = {"tokenizer": bpe, "workers": workers, "resume_key": "mine"}
    tokpack.encode(write_jsonl(tmp_path / "a.jsonl", TEXTS * 20), tmp_path / "whole", tokenizer=bpe)
    with pytest.raises(OwnError):
        tokpack.encode(stops(output), output, **options)
    with pytest.raises(ResumeError, match="another resume_key"):
        tokpack.encode(iter(TEXTS * 20), output, **{**options, "resume_key": "yours"})
    shown: list[Any] = []
    tokpack.encode(iter(TEXTS * 20), output, progress=shown.append, **options)
    assert shown[0].documents > 0
    assert dataset(output) == dataset(tmp_path / "whole")


KILLED = (
    PLANT
    + """
import functools, json, sys
import pyarrow, tokpack
from tokpack.encoding import coordinator, plan
from tokpack.sources import columns
plan.make_parts = functools.partial(plan.make_parts, smallest_bytes=32 << 10)
columns._GROUP_BYTES = 16 << 10
path, output, tokenizer, kind = sys.argv[1:]
texts = [json.loads(line)["text"] for line in open(path)]
def write(self, entry, real=coordinator.Journal.write):
    real(self, entry)
    kill()
plant(coordinator.Journal, "write", write, at=3, when=lambda _, entry: "piece" in entry)
made = pyarrow.table({"text": texts}) if kind == "table" else iter(texts)
tokpack.encode(made, output, tokenizer=tokenizer, workers=2, resume_key="mine")
"""
)


@pytest.mark.parametrize("kind", ["table", "generator"])
def test_a_killed_run_goes_on(
    kind: str, lines: tuple[bytes, bytes], tmp_path: Path, bpe: Path, small_parts: None
) -> None:
    path, output = write_jsonl(tmp_path / "a.jsonl", TEXTS), tmp_path / "out"
    done = forked.run(["-c", KILLED, path, output, bpe, kind], timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr
    options: dict[str, Any] = {"tokenizer": bpe, "workers": 2, "resume_key": "mine"}
    made: Any = pa.table({"text": TEXTS}) if kind == "table" else iter(TEXTS)
    other: Any = made.slice(1) if kind == "table" else iter(TEXTS[1:])
    with pytest.raises(ResumeError):
        tokpack.encode(other, output, **options)
    shown: list[Any] = []
    tokpack.encode(made, output, progress=shown.append, **options)
    assert shown[0].documents > 0
    assert dataset(output) == lines

"""Compare tokpack with other installed libraries, on the user's texts."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import UsageError, WorkerError
from tokpack.look import bench_one
from tokpack.look.bench_one import LIBRARIES
from tokpack.tokenizers import library_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.look.tokenizers import Texts
    from tokpack.tokenizers import Tokenizer

Row = dict[str, Any]  # the output of ``bench_one``
_RUNS = 3  # processes of each library


@dataclass(frozen=True)
class LibraryTrial:
    """A library on the same texts, in one thread of processes of its own.

    ``construction`` is processor seconds until it has encoded one letter. ``first`` is the speed on
    the first 10 MB, each text once, and ``later`` on the rest (0 if none), in MB (10^6 bytes) of
    text per processor second. All are medians over runs. ``same_ids``: the ids equal tokpack's.
    ``failure`` says why there are no figures.
    """

    library: str
    version: str = ""
    construction: float = 0.0
    first: float = 0.0
    later: float = 0.0
    same_ids: bool = False
    failure: str = ""


def bench(
    tokenizer: Tokenizer, texts: Texts, *, libraries: Sequence[str] = ()
) -> list[LibraryTrial]:
    """Encode ``texts`` by tokpack and by some libraries, or all that are installed, in turns.

    tokpack's own ids are those of ``encode`` without EOD. TokenizerError for a tokenizer without a
    tokenizer.json, which the other libraries read.
    """
    names = list(dict.fromkeys(["tokpack", *(libraries or filter(find_spec, LIBRARIES))]))
    for name in names:
        if name not in LIBRARIES:
            raise UsageError(f"{name} is not a library that bench knows: {', '.join(LIBRARIES)}")
    with tempfile.TemporaryDirectory(prefix="tokpack-bench-") as folder:
        work = Path(folder)
        library_of(tokenizer).save(str(work / "tokenizer.json"))
        texts.data.tofile(work / "text")
        np.array([0, *texts.spans[:, 1]], np.int64).tofile(work / "offsets")
        rounds = [[_measure(name, work, texts.size) for name in names] for _ in range(_RUNS)]
    own = rounds[0][0]
    if "failure" in own:
        raise WorkerError(own["failure"])
    columns = zip(names, zip(*rounds, strict=True), strict=True)
    return [_summed(name, rows, own["ids"]) for name, rows in columns]


def _measure(name: str, work: Path, size: int) -> Row:
    """The measurements of one process, or the ``failure`` that it reported last."""
    arguments = [name, work / "text", work / "offsets", size, work]
    done = subprocess.run(
        [sys.executable, "-P", bench_one.__file__, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _summed(name: str, rows: Sequence[Row], ids: str) -> LibraryTrial:
    for row in rows:
        if "failure" in row:
            return LibraryTrial(name, failure=row["failure"])

    def speed(part: str) -> float:
        parts = [row[part] for row in rows]
        return float(median(one["bytes"] / 1e6 / max(one["seconds"], 1e-9) for one in parts))

    construction = median(row["construction"] for row in rows)
    same = all(row["ids"] == ids for row in rows)
    version = rows[0]["version"]
    return LibraryTrial(name, version, construction, speed("first"), speed("later"), same)

"""tokpack beside the other libraries that are installed here, on texts of the user."""

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
from tokpack.tokenizers.accelerated import library_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.look.tokenizers import Texts
    from tokpack.tokenizers import Tokenizer


@dataclass(frozen=True)
class LibraryTrial:
    """A library on the same texts, in one thread of processes of its own.

    ``construction`` is processor seconds until it has encoded a letter. ``first`` is the speed on
    the first 10 MB, each text once, and ``later`` that on the rest, 0 where there is none, in MB
    (10^6 bytes) of text a processor second. All are medians over the runs. ``same_ids`` as
    tokpack's. ``failure`` says why there are no figures.
    """

    library: str
    version: str = ""
    construction: float = 0.0
    first: float = 0.0
    later: float = 0.0
    same_ids: bool = False
    failure: str = ""


def installed_libraries() -> list[str]:
    """Those that are measured, tokpack first."""
    return [name for name in bench_one.LIBRARIES if find_spec(name)]


def bench(
    tokenizer: Tokenizer, texts: Texts, *, libraries: Sequence[str] = (), runs: int = 3
) -> list[LibraryTrial]:
    """Encode ``texts`` by each library, ``runs`` times in turns; by all that are installed.

    Its own ids are those of ``encode`` without EOD. TokenizerError for a tokenizer without a
    tokenizer.json, which is what the others read.
    """
    names = list(dict.fromkeys(["tokpack", *(libraries or installed_libraries())]))
    for name in names:
        if name not in bench_one.LIBRARIES:
            choices = ", ".join(bench_one.LIBRARIES)
            raise UsageError(f"{name} is no library that is measured: {choices}")
    with tempfile.TemporaryDirectory(prefix="tokpack-bench-") as folder:
        work = Path(folder)
        library_of(tokenizer).save(str(work / "tokenizer.json"))
        texts.data.tofile(work / "text")
        np.array([0, *texts.spans[:, 1]], np.int64).tofile(work / "offsets")
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        failures: dict[str, str] = {}
        for _ in range(runs):
            for name in names:
                if name in failures:
                    continue
                try:
                    rows[name].append(_measure(name, work, texts.size))
                except WorkerError as error:
                    failures[name] = str(error)
    if "tokpack" in failures:
        raise WorkerError(failures["tokpack"])
    right = rows["tokpack"][0]["ids"]
    return [
        LibraryTrial(name, failure=failures[name])
        if name in failures
        else _summed(name, rows[name], right)
        for name in names
    ]


def _measure(name: str, work: Path, size: int) -> dict[str, Any]:
    """One process. WorkerError with the last line of what it says."""
    arguments = [name, work / "text", work / "offsets", size, work]
    done = subprocess.run(
        [sys.executable, "-P", bench_one.__file__, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WorkerError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _summed(name: str, rows: Sequence[dict[str, Any]], right: str) -> LibraryTrial:
    def speed(part: str) -> float:
        parts = [row[part] for row in rows]
        return float(median(one["bytes"] / 1e6 / max(one["seconds"], 1e-9) for one in parts))

    return LibraryTrial(
        library=name,
        version=rows[0]["version"],
        construction=median(row["construction"] for row in rows),
        first=speed("first"),
        later=speed("later"),
        same_ids=all(row["ids"] == right for row in rows),
    )

"""Real encodes with more and more workers, and what the machine's memory and disk allow.

The other half of scale.py: its model says what many cores should do, this measures what the cores
that are there do.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common import Data

GB = 10**9
COPY_SECONDS = 1.0
COPIED = 1 << 26  # bytes, more than caches hold
DISK_BYTES = 1 << 30


class Texts:
    """English in JSON lines, twice: a file of ``size`` bytes, and one of a quarter of them."""

    def __init__(self, data: Data, size: int, folder: str) -> None:
        lines = data.lines("english")
        self.paths = []
        for number, wanted in enumerate((size // 4, size)):
            path = Path(folder, f"real-{number}.jsonl")
            with path.open("wb") as file:
                for _ in range(max(number + 1, round(wanted / len(lines)))):
                    file.write(lines)
            self.paths.append(path)


class Real:
    """The command, given ``workers`` and, where it is ``pinned``, as many processors."""

    def __init__(self, data: Data, texts: Texts, folder: str, *, pinned: bool) -> None:
        self._data = data
        self._texts = texts
        self._prefix = f"{folder}/real"
        self._pinned = pinned

    def measured(self, workers: int, dtype: str, runs: int) -> dict[str, Any]:
        """What a further GB of ids takes: seconds, processor seconds; the least of some runs.

        ``wall`` and ``text`` are of the whole command with the larger input, start and sync too.
        """
        least = []
        for path in self._texts.paths:
            both = [self._once(path, workers, dtype) for _ in range(runs)]
            least.append(tuple(map(min, zip(*both, strict=True))))
        (wall, cpu, ids), (long, more, large) = least
        return {
            "workers": workers,
            "dtype": dtype,
            "pinned": self._pinned,
            "text_bytes": self._texts.paths[1].stat().st_size,
            "wall": long,
            "seconds": (long - wall) * GB / (large - ids),
            "processor_seconds": (more - cpu) * GB / (large - ids),
        }

    def _once(self, path: Path, workers: int, dtype: str) -> tuple[float, float, int]:
        """Seconds, processor seconds and bytes of ids."""
        find = self._data.find
        words = [sys.executable, "-m", "tokpack", "encode", str(path), "-o", self._prefix]
        words += ["--vocab-file", str(find("gpt2-vocab.json"))]
        words += ["--merge-file", str(find("gpt2-merges.txt"))]
        words += ["--workers", str(workers), "--dtype", dtype, "--overwrite"]
        os.sync()  # what the run before has written is not this one's
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with measure.on_cores(workers if self._pinned else None):
            began = time.perf_counter()
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, said = process.communicate()
        wall = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode:
            sys.exit(f"a run failed:\n{said.decode(errors='replace')[-3000:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return wall, cpu, os.path.getsize(f"{self._prefix}.bin")


def disk_speed(folder: str) -> float:
    """GB a second that a file takes, until it is synced."""
    block = os.urandom(1 << 20)
    with Path(folder, "disk.bin").open("wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(DISK_BYTES // len(block)):
            file.write(block)
        os.fsync(file.fileno())
        seconds = time.perf_counter() - began
    os.unlink(f"{folder}/disk.bin")
    return DISK_BYTES / seconds / GB


def memory_speed(workers: Iterable[int]) -> dict[int, float]:
    """GB a second that so many processes copy together, by their number."""
    found = {}
    context = multiprocessing.get_context("fork")
    for count in workers:
        with context.Pool(count) as pool:
            found[count] = sum(pool.map(_copy, [COPY_SECONDS] * count, chunksize=1)) / GB
    return found


def _copy(seconds: float) -> float:
    """Bytes a second that this process copies."""
    source, target = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    copied, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        np.copyto(target, source)
        copied += COPIED
    return copied / (time.perf_counter() - began)

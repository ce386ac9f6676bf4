"""How far a run is, for whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A snapshot of a run: ``done`` of ``total`` of its stage, after so many ``seconds``.

    They are in ``unit``; of encode these are the inputs' stored (compressed) bytes. What a command
    does not count stays 0.
    """

    stage: str  # encode | join | sync, or the command's own
    done: int
    total: int
    seconds: float
    unit: str = "bytes"  # or tokens, sequences
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    rejected: int = 0
    bottleneck: str = ""  # read (with decompressing and parsing) | encode | write | ""
    workers: int = 1


Show = Callable[[Progress], None]


class Stage:
    """Tells ``show`` how far a stage is, of which only this is known: so much of ``total``."""

    def __init__(self, show: Show | None, name: str, total: int, unit: str = "bytes") -> None:
        self._show = show
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._began = time.monotonic()

    def add(self, count: int) -> None:
        """So much more is done."""
        self._done += count
        if self._show is None:
            return
        self._show(
            Progress(
                stage=self._name,
                done=self._done,
                total=self._total,
                seconds=time.monotonic() - self._began,
                unit=self._unit,
            )
        )


class Advance(NamedTuple):
    """What a worker says about the part it is at; the counts are those of this part so far.

    ``extents`` are the ends of the segments written since the last time, each as
    ``(segment, end of each track in bytes)``; the last one may still grow.
    """

    number: int
    bytes_read: int
    text_bytes: int
    documents: int
    tokens: int
    rejected: int
    seconds: tuple[float, ...]  # read, encode, write
    extents: tuple[tuple[int, ...], ...]


class Meter:
    """Adds up what the workers say and passes it on, a few times a second."""

    stages = ("read", "encode", "write")

    def __init__(
        self,
        show: Show | None,
        bytes_total: int,
        workers: int,
        interval: float = 0.2,
    ) -> None:
        self._show = show
        self._bytes_total = bytes_total
        self._workers = workers
        self._interval = interval
        self._began = time.monotonic()
        self._shown = 0.0
        self._parts: dict[int, tuple[int, ...]] = {}
        self._sums = [0, 0, 0, 0, 0]
        self._busy = [0.0, 0.0, 0.0]
        self._part_busy: dict[int, tuple[float, ...]] = {}

    @property
    def rejected(self) -> int:
        return self._sums[4]

    def part(self, number: int, counts: tuple[int, ...], seconds: tuple[float, ...]) -> None:
        """Counts of a part so far: bytes, text bytes, documents, tokens, rejected."""
        old = self._parts.get(number, (0, 0, 0, 0, 0))
        self._parts[number] = counts
        self._sums = [s + new - was for s, new, was in zip(self._sums, counts, old, strict=True)]
        was_busy = self._part_busy.get(number, (0.0, 0.0, 0.0))
        self._part_busy[number] = seconds
        self._busy = [s + n - w for s, n, w in zip(self._busy, seconds, was_busy, strict=True)]

    def show(self, stage: str, *, now: bool = False) -> None:
        """Pass a snapshot on, unless the last one was just shown; ``now`` shows it in any case."""
        if self._show is None:
            return
        clock = time.monotonic()
        if not now and clock - self._shown < self._interval:
            return
        self._shown = clock
        done = self._bytes_total if stage != "encode" else min(self._sums[0], self._bytes_total)
        slowest = max(range(3), key=lambda i: self._busy[i])
        self._show(
            Progress(
                stage=stage,
                done=done,
                total=self._bytes_total,
                text_bytes=self._sums[1],
                documents=self._sums[2],
                tokens=self._sums[3],
                rejected=self._sums[4],
                seconds=clock - self._began,
                bottleneck=self.stages[slowest] if self._busy[slowest] else "",
                workers=self._workers,
            )
        )

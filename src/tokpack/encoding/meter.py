"""How far a run is: workers count in memory that they share with the run, which looks at it."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.apart import Limits
from tokpack.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tokpack.encoding.piece import Piece
    from tokpack.progress import Show
    from tokpack.sources import DocumentBatch

_SHOWN_SECONDS = 0.2  # between two snapshots
# What a worker counts, in this order, under the names of SOURCE_COLUMNS and KEY_COLUMNS.
_NAMES = (
    *("bytes_read", "text_bytes", "documents", "tokens", "rejected"),
    *("left_out", "mapped_out", "mapped_in"),
)
_COUNTS = len(_NAMES)
_STAGES = ("read", "encode", "write")  # and the nanoseconds of each
_PLACE = ("part", "source", "records_before", "record")  # in work, see `Counters.place`


def place_of(values: Any) -> list[int]:
    """What a worker has noted last: the numbers of _PLACE."""
    return list(values[-len(_PLACE) :])


class Counters:
    """What one worker has done so far, and where its time went."""

    def __init__(self, values: Any) -> None:
        self._values: npt.NDArray[np.int64] = np.frombuffer(values, np.int64)
        self.limits = Limits(values)
        self._clock = time.perf_counter_ns()

    def place(self, part: int, source: int, before: int | None) -> None:
        """Say whose records come now; ``before`` them the source has so many, if that is known.

        The number of each from there on is noted by ``limits``; 0 for none.
        """
        self._values[-len(_PLACE) : -1] = part, source, -1 if before is None else before

    def start(self) -> None:
        """Count time from now on."""
        self._clock = time.perf_counter_ns()

    def spent(self, stage: int) -> None:
        """Count the time since the last call for a stage."""
        now = time.perf_counter_ns()
        self._values[_COUNTS + stage] += now - self._clock
        self._clock = now

    def add(self, batch: DocumentBatch, documents: int, tokens: int) -> None:
        """Count a batch."""
        self._values[:_COUNTS] += (
            batch.bytes_read,
            batch.text_bytes,
            documents,
            tokens,
            len(batch.bad),
            *(batch.left_out, batch.mapped_out, batch.mapped_in),
        )


class Meter:
    """Adds up what the workers have counted and passes it on, a few times a second."""

    def __init__(self, show: Show | None, bytes_total: int, workers: int) -> None:
        # A plain array of the C library, which a started process inherits or is given.
        size = _COUNTS + len(_STAGES) + len(_PLACE)
        self.shared = [multiprocessing.RawArray("q", size) for _ in range(workers)]
        self._own = np.zeros(_COUNTS, np.int64)  # of what was there already
        self._show = show
        self._bytes_total = bytes_total
        self._workers = workers
        self._began = time.monotonic()
        self._shown = 0.0

    def add(self, pieces: Sequence[Piece], columns: Sequence[str]) -> None:
        """Count pieces that an earlier run has made."""
        for count, name in enumerate(_NAMES):
            # Of the keys, documents are those of the first, tokens those of all.
            places = [n for n, column in enumerate(columns) if column == name]
            for place in places if name == "tokens" else places[:1]:
                self._own[count] += sum(piece.total(place) for piece in pieces)

    def show(self, stage: str, *, now: bool = False) -> None:
        """Pass a snapshot on, unless the last one was just shown; ``now`` shows it in any case."""
        if self._show is None:
            return
        clock = time.monotonic()
        if not now and clock - self._shown < _SHOWN_SECONDS:
            return
        self._shown = clock
        sums = self._sums()
        busy = sums[_COUNTS : -len(_PLACE)]
        counts = dict(zip(_NAMES, sums[:_COUNTS].tolist(), strict=True))
        done = min(counts.pop("bytes_read"), self._bytes_total)
        self._show(
            Progress(
                stage=stage,
                done=done if stage == "encode" else self._bytes_total,
                total=self._bytes_total,
                seconds=clock - self._began,
                bottleneck=_STAGES[int(busy.argmax())] if busy.any() else "",
                workers=self._workers,
                **counts,
            )
        )

    def _sums(self) -> npt.NDArray[np.int64]:
        counts = [np.frombuffer(values, np.int64) for values in self.shared]
        sums: npt.NDArray[np.int64] = np.sum(counts, axis=0)
        sums[:_COUNTS] += self._own
        return sums

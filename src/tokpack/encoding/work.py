"""The work of a run: all parts of a job become pieces in their places, in joined files."""

from __future__ import annotations

import functools
import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.apart import has_processes
from tokpack.encoding.check import check_first_documents
from tokpack.encoding.coordinator import Coordinator
from tokpack.encoding.engine import Processes, run_here
from tokpack.encoding.folder import create_own
from tokpack.encoding.journal import Journal
from tokpack.encoding.meter import Meter
from tokpack.encoding.plan import NAME as PLAN
from tokpack.encoding.resume import check_budget, resume
from tokpack.encoding.tracks import TrackFiles
from tokpack.encoding.worker import Slots
from tokpack.files.durable import cannot_write, sync_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from tokpack.encoding.piece import Job, Pieces
    from tokpack.encoding.plan import Plan
    from tokpack.progress import Show

SYNC_SECONDS = 2.0
_SLOTS_A_WORKER = 2
_SEGMENT_SLACK = 2  # blocks more than a segment has, at most, if no line is longer


@dataclass(frozen=True)
class EncodeResult:
    """The result of the work: pieces, checksums of the files of a stream, sums of the .bin."""

    pieces: Pieces
    stream_blocks: Mapping[int, str | None]  # by part
    sums: Mapping[str, bytes]  # of the blocks of each file of ids, by its name


class EncodingRun:
    """The work of one run; a context, which closes what it has opened.

    ``touched`` are the sources whose files have another time than in the plan of the work folder.
    ``beat`` is called now and then to show that the run is alive.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        touched: Sequence[int],
        *,
        workers: int,
        show: Show | None,
        beat: Callable[[], None],
    ) -> None:
        with ExitStack() as opened:
            self._job = job
            self._joined: list[TrackFiles] = []
            for name in job.joined:
                self._joined.append(_open_joined(job, name))
                opened.callback(self._joined[-1].close)
            resumed = resume(job, touched, self._joined, beat)
            self._journal = Journal(job.folder, resumed.entries())
            opened.callback(self._journal.close)
            if touched:  # with the new times, so that nothing is left out again
                job.folder.write_json(PLAN, plan.to_json())
            workers = self._useful(workers)
            self._meter = Meter(show, plan.bytes, workers)
            self._meter.add(list(resumed.pieces.values()), job.columns)
            self._slots = _slots_for(job, workers)
            slots = self._slots.count if self._slots else 0
            self._coordinator = Coordinator(
                job, resumed, self._journal, workers=workers, slots=slots
            )
            self._beat = beat
            self._ended = threading.Event()
            self._check = _Background(
                functools.partial(check_first_documents, job), "tokpack-check"
            )
            self._syncs = _Background(self._sync, "tokpack-sync")
            self._opened = opened.pop_all()

    def encode(self) -> EncodeResult:
        """Do what is left to do, and make it durable."""
        job, coordinator = self._job, self._coordinator
        # Whoever runs this is not limited: where templates run, there are workers' processes.
        if len(self._meter.shared) > 1 or (job.chat is not None and has_processes()):
            with Processes(job, self._meter.shared, self._slots) as processes:
                self._start()
                processes.run(coordinator, self._poll)
        else:
            self._start()
            run_here(job, self._meter.shared[0], coordinator, self._poll)
        self._check.join()
        self._check.check()
        self._meter.show("sync", now=True)
        self._ended.set()
        self._syncs.join()
        self._look()  # of a write that failed the system tells once, maybe in the last sync of all
        for joined, ends in zip(self._joined, coordinator.ends, strict=True):
            for path, file, end in zip(joined.paths, joined.files, ends, strict=True):
                with cannot_write(path):
                    os.ftruncate(file, end)
                    sync_data(file)
        return EncodeResult(coordinator.pieces, coordinator.stream_blocks, coordinator.digests())

    @property
    def is_worth_keeping(self) -> bool:
        """Whether there is anything that a later run could go on with, or a user look at."""
        column = self._job.key_column(0, "tokens")
        lists = self._job.options.on_error == "skip" and self._coordinator.rejected > 0
        return lists or any(piece.total(column) for piece in self._coordinator.pieces)

    def __enter__(self) -> EncodingRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._syncs.join()
        self._check.join()
        self._opened.close()

    def _useful(self, workers: int) -> int:
        """How many of the workers have something to do."""
        parts = self._job.parts
        is_linux = sys.platform == "linux"  # elsewhere workers do not inherit what is in memory
        if any(part.kind == "stream" for part in parts) and is_linux:
            return workers
        if not is_linux and any(source.memory is not None for source in self._job.sources):
            return 1
        return max(1, min(workers, len(parts)))

    def _start(self) -> None:
        # Threads come after the fork: a worker starts with one thread and no lock held.
        self._syncs.start()
        self._check.start()
        self._poll()

    def _poll(self) -> None:
        """Raise what went wrong elsewhere; show how far the run is."""
        self._look()
        self._meter.show("place" if self._coordinator.all_encoded else "encode")

    def _look(self) -> None:
        self._syncs.check()
        self._check.check()
        check_budget(self._coordinator.rejected, self._job.options, self._job.folder.path)

    def _sync(self) -> None:
        """Make files durable now and then, so that little is left at the end."""
        files = {
            path: file
            for joined in self._joined
            for path, file in zip(joined.paths, joined.files, strict=True)
        }
        files[self._journal.path] = self._journal.file
        while not self._ended.wait(SYNC_SECONDS):
            self._beat()
            for path, file in files.items():
                with cannot_write(path):
                    sync_data(file)


def _open_joined(job: Job, name: str) -> TrackFiles:
    """The joined files of a name, which are there when a worker opens them."""
    for track in job.tracks:
        path = job.folder(f"{name}.{track}")
        if not os.path.lexists(path):
            os.close(create_own(path))
    return TrackFiles(job.folder, name, job.tracks)


def _slots_for(job: Job, workers: int) -> Slots | None:
    """Shared memory for the segments of streams, where there are any, and others to encode them."""
    segments = [part.end for part in job.parts if part.kind == "stream"]
    if not segments or workers < 2 or sys.platform != "linux":
        return None
    return Slots(_SLOTS_A_WORKER * workers, max(segments) + _SEGMENT_SLACK * (1 << 20))


class _Background:
    """A thread that works beside the workers; what it raises is raised by ``check``."""

    def __init__(self, main: Callable[[], None], name: str) -> None:
        self._main = main
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait for its end: Python must not exit while a thread is in native code."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._main()
        except BaseException as error:
            self._error = error

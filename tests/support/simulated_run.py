"""A run without processes: its real coordinator, workers, files and journal, in random order.

Each worker is a thread that goes on only when it is told to, and stops where a real one would talk
to the run. So a seed decides which of them is quick, which message is late, and when all is killed.
"""

from __future__ import annotations

import functools
import os
import random
import threading
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokpack.encoding import part, resume, run, worker
from tokpack.encoding.coordinator import Coordinator, Journal
from tokpack.encoding.piece import JOINED, SPILL, Job
from tokpack.encoding.worker import Counters, Slots, Worker
from tokpack.sources import LineStream
from tokpack.storage.disk import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.encoding.coordinator import Event, ToWorker

FOREVER = 1 << 60


@contextmanager
def patched(rng: random.Random) -> Iterator[None]:
    """Small blocks and parts for small inputs, and writes that other threads may interrupt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "HELD_BYTES", rng.choice((500, 5000, 50_000)))
        patch.setattr(blocks, "BLOCK_BYTES", rng.choice((64, 512, 4096)))
        stream = functools.partial(LineStream, block_bytes=rng.choice((64, 1000)))
        patch.setattr(worker, "LineStream", stream)
        read = functools.partial(part.read, block_bytes=rng.choice((64, 1000)))
        patch.setattr(part, "read", read)
        patch.setattr(worker, "_FIRST_BYTES", 16)
        patch.setattr(worker.TrackFiles, "write", _interrupted(worker.TrackFiles.write))
        yield


_own = threading.local()  # .link is that of the worker that this thread runs


def _interrupted(write: Callable[[worker.TrackFiles, int, memoryview, int], None]) -> Any:
    def interrupted(self: worker.TrackFiles, track: int, data: memoryview, at: int) -> None:
        half = len(data) // 2
        write(self, track, data[:half], at)
        _own.link.wrote(self, len(data))
        write(self, track, data[half:], at + half)

    return interrupted


class Killed(BaseException):
    """Raised in the thread of a worker to end it."""


class _Thread:
    """A worker in a thread, with the queues between it and the run."""

    def __init__(self, job: Job, slots: Slots | None, rng: random.Random) -> None:
        self.written: Counter[str] = Counter()  # bytes, by place
        self.inbox: deque[ToWorker] = deque()
        self.sent: deque[list[Event]] = deque()  # events that the run has not taken yet
        self.waits = False  # whether it waits for its inbox to be filled
        self.error: BaseException | None = None
        self._outbox: list[Event] = []
        self._rng = rng
        self._killed = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        counters = Counters(np.zeros(worker._COUNTS + len(worker._STAGES), np.int64).data)
        self._worker = Worker(job, counters, self, slots=slots)
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let the worker go on until it next sends to the run, or waits for it."""
        self._go.release()
        self._stopped.acquire()
        if self.error is not None:
            raise self.error

    def check_memory(self) -> None:
        """Check that buffers are no larger than the limit, however large a document was."""
        for waiting in (*self._worker._free, *self._worker._held.values()):
            assert max(map(len, waiting.buffers)) <= 2 * worker.HELD_BYTES

    def kill(self) -> None:
        self._killed = True
        self._go.release()
        self._thread.join()
        self._worker.close()

    def _main(self) -> None:
        _own.link = self
        try:
            self._pause()
            self._worker.serve()
        except Killed:
            return
        except BaseException as error:
            self.error = error
        self._stopped.release()

    def _pause(self) -> None:
        self._go.acquire()
        if self._killed:
            raise Killed

    def _talk(self) -> None:
        self._stopped.release()
        self._pause()

    def wrote(self, place: worker.TrackFiles, size: int) -> None:
        self.written[JOINED if place.name.startswith(JOINED) else SPILL] += size
        if self._rng.random() < 0.3:
            self._talk()

    def send(self, event: Event) -> None:
        self._outbox.append(event)

    def poll(self) -> ToWorker | None:
        self._flush()
        self._talk()
        if not self.inbox or self._rng.random() < 0.3:  # a message may be delivered later
            return None
        return self.inbox.popleft()

    def wait(self) -> ToWorker | None:
        self._flush()
        self.waits = True
        self._talk()
        while not self.inbox:
            self._talk()
        self.waits = False
        return self.inbox.popleft()

    def _flush(self) -> None:
        if self._outbox:
            self.sent.append(self._outbox)
            self._outbox = []


class Simulation:
    """The runs of one job in one work folder."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job = job
        self.rng = random.Random(seed)
        self.written: Counter[str] = Counter()  # bytes, by place
        self.coordinator: Coordinator

    def run(self, workers: int, steps: int = FOREVER, touched: Sequence[int] = ()) -> bool:
        """Run for at most so many steps, then kill all; return whether the run has ended."""
        job = self.job
        joined = [run._open_joined(job, name) for name in job.joined]
        resumed = resume.resume(job, touched, joined, lambda: None)
        journal = Journal(job.folder, resumed.entries())
        segments = [part.end for part in job.parts if part.kind == "stream"]
        slots = None
        if workers > 1 and segments:
            size = max(segments) + self.rng.choice((0, 256, 4096))
            slots = Slots(self.rng.randint(1, 2 * workers), size)
        count = slots.count if slots else 0
        self.coordinator = Coordinator(job, resumed, journal, workers=workers, slots=count)
        threads = [_Thread(job, slots, self.rng) for _ in range(workers)]
        try:
            if not self._go(threads, steps):
                return False
            self._check_end(threads, count)
            self._check_bytes(joined)
        finally:
            for thread in threads:
                thread.kill()
                self.written += thread.written
            for files in joined:
                files.close()
            journal.close()
        return True

    def _go(self, threads: Sequence[_Thread], steps: int) -> bool:
        lazy = self.rng.random() < 0.5 and self.rng.choice(threads)  # a slow worker
        for _ in range(steps):
            self._feed(threads)
            if self.coordinator.finished:
                return True
            ready: list[Any] = [thread for thread in threads if thread.sent]
            ready += [thread.step for thread in threads if not thread.waits or thread.inbox]
            assert ready, "nobody has anything to do, and the run is not finished"
            chosen = self.rng.choice(ready)
            if lazy in (chosen, getattr(chosen, "__self__", None)) and self.rng.random() < 0.9:
                chosen = self.rng.choice(ready)
            self._do(chosen, threads)
        return False

    def _feed(self, threads: Sequence[_Thread]) -> None:
        self.coordinator.feed()
        while self.coordinator.outbox:
            number, message = self.coordinator.outbox.popleft()
            threads[number].inbox.append(message)

    def _do(self, chosen: Any, threads: Sequence[_Thread]) -> None:
        if isinstance(chosen, _Thread):
            for event in chosen.sent.popleft():
                self.coordinator.event(threads.index(chosen), event)
        else:
            chosen()

    def _check_end(self, threads: Sequence[_Thread], slots: int) -> None:
        """Deliver what is under way until all workers rest; then nothing may be held."""
        while True:
            ready: list[Any] = [thread for thread in threads if thread.sent]
            ready += [thread.step for thread in threads if not thread.waits or thread.inbox]
            if not ready:
                break
            self._do(ready[0], threads)
            self._feed(threads)
        for thread in threads:
            thread.check_memory()
        own = self.coordinator
        assert sorted(own._slots) == list(range(slots))
        assert not any(own._granted)
        assert not any(own._tasks)
        assert not own._owner
        assert not own._moving
        assert not own._begins
        assert not list(Path(self.job.folder.path).glob(f"{SPILL}*"))

    def _check_bytes(self, joined: Sequence[worker.TrackFiles]) -> None:
        """Cut the joined files to their length and compare their checksums with the noted ones."""
        for files, ends in zip(joined, self.coordinator.ends, strict=True):
            for file, end, name in zip(files.files, ends, self.job.tracks, strict=True):
                os.ftruncate(file, end)
                if name.endswith(".ids"):
                    whole = blocks.file_sums(file, 0, end)
                    assert self.coordinator.digests()[f"{files.name}.{name}"] == whole

    def touch(self, source: int) -> None:
        """Change the modification time of a source's file."""
        own = list(self.job.sources)
        own[source] = replace(own[source], mtime_ns=own[source].mtime_ns + 1000)
        os.utime(own[source].path, ns=(0, own[source].mtime_ns))
        self.job = replace(self.job, sources=tuple(own))

    @property
    def content(self) -> list[bytes]:
        """Return the contents of all tracks, of several files one after the other."""
        paths = [
            [self.job.folder(f"{j}.{name}") for j in self.job.joined] for name in self.job.tracks
        ]
        return [b"".join(Path(path).read_bytes() for path in of_track) for of_track in paths]

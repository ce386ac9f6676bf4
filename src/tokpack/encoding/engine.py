"""Engines: map the encoding of one part over the parts, in this process or over several.

No text and no tokens travel between processes: a worker gets numbers of parts, and says how far it
is a few times a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol

from tokpack.encoding.part import PartEncoder
from tokpack.encoding.piece import Job, Piece
from tokpack.errors import TokpackError, WorkerError
from tokpack.progress import Advance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.process import BaseProcess

POLL_SECONDS = 0.2


class Watcher(Protocol):
    """The callbacks of an engine, which report its progress."""

    def advanced(self, advance: Advance) -> None:
        """A part has come so far."""

    def finished(self, piece: Piece) -> None:
        """A piece exists."""

    def poll(self) -> None:
        """Called a few times a second; may raise to end the run."""


class Engine(Protocol):
    """Maps the encoding of one part over parts."""

    def run(self, numbers: Sequence[int], watcher: Watcher) -> None:
        """Encode the parts ``numbers``, in any order."""


class Queue:
    """Parts in plan order, so that the join can follow; a heavy one first where it would end last.

    A part heavier than an even share of all that is left would keep one worker busy after the
    others are done, so it is taken at once.
    """

    def __init__(self, job: Job, numbers: Sequence[int], workers: int) -> None:
        self._weights = {number: job.parts[number].weight for number in numbers}
        self._in_order = deque(numbers)
        self._by_weight = sorted(numbers, key=lambda n: (-self._weights[n], n))
        self._at = 0
        self._left = sum(self._weights.values())
        self._workers = workers

    def __len__(self) -> int:
        return len(self._weights)

    def take(self) -> int | None:
        """The next part to encode, or None."""
        if not self._weights:
            return None
        while self._by_weight[self._at] not in self._weights:
            self._at += 1
        while self._in_order[0] not in self._weights:
            self._in_order.popleft()
        number = self._by_weight[self._at]
        if self._weights[number] * self._workers <= self._left:
            number = self._in_order.popleft()
        self._left -= self._weights.pop(number)
        return number


class InProcess:
    """Encodes the parts one after the other in this process."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def run(self, numbers: Sequence[int], watcher: Watcher) -> None:
        """Encode the parts ``numbers``."""
        encoder = PartEncoder(self._job)

        def report(advance: Advance) -> None:
            watcher.advanced(advance)
            watcher.poll()

        for number in numbers:
            watcher.finished(encoder.run(number, report))
            watcher.poll()


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection[Any, Any]
    parts: deque[int] = field(default_factory=deque)  # given to it and not finished; first: current


class Processes:
    """Encodes the parts in ``workers`` processes. A context: leaving it ends every worker."""

    def __init__(self, job: Job, workers: int) -> None:
        self._job = job
        self._count = workers
        self._workers: list[_Worker] = []

    def __enter__(self) -> Processes:
        # A fork shares what the parent has loaded, and starts in a millisecond.
        forks = sys.platform == "linux"
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        for _ in range(self._count):
            ours, theirs = context.Pipe()
            inherited = [worker.connection for worker in self._workers] + [ours]
            process = context.Process(
                target=_work,
                args=(self._job, theirs, os.getpid(), inherited if forks else []),
                daemon=True,
            )
            with warnings.catch_warnings():  # a fork warns of the idle threads of libraries
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()

    def run(self, numbers: Sequence[int], watcher: Watcher) -> None:
        """Encode the parts. Raises WorkerError when a worker dies, or the error it raised."""
        queue = Queue(self._job, numbers, self._count)
        for worker in self._workers:
            self._feed(worker, queue)
        while busy := {w.connection: w for w in self._workers if w.parts}:
            # A dead worker's connection is ready too: it is at its end.
            for ready in wait(list(busy), POLL_SECONDS):
                worker = busy[ready]  # type: ignore[index]
                message = self._receive(worker)
                if isinstance(message, Piece):
                    worker.parts.popleft()
                    self._feed(worker, queue)
                    watcher.finished(message)
                elif isinstance(message, Advance):
                    watcher.advanced(message)
                else:
                    raise self._failure(worker, message)
            watcher.poll()

    def _feed(self, worker: _Worker, queue: Queue) -> None:
        """Give a worker its next part; a second one in advance, so that it need not wait for us."""
        ahead = 2 if len(queue) > 2 * self._count else 1
        while len(worker.parts) < ahead and (number := queue.take()) is not None:
            try:
                worker.connection.send(number)
            except OSError:
                raise self._death(worker, number) from None
            worker.parts.append(number)

    def _receive(self, worker: _Worker) -> Any:
        try:
            return worker.connection.recv()
        except (EOFError, OSError):
            raise self._death(worker, worker.parts[0]) from None

    def _failure(self, worker: _Worker, message: Any) -> TokpackError:
        if isinstance(message, TokpackError):
            return message
        what = self._job.describe(worker.parts[0])
        return WorkerError(f"a worker failed at {what}; run again to continue\n{message}")

    def _death(self, worker: _Worker, number: int) -> WorkerError:
        worker.process.join(5)
        code = worker.process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            how = f"was killed by {name}"
            if name == "SIGKILL":
                how += " (is there enough memory?)"
        return WorkerError(f"a worker {how} at {self._job.describe(number)}; run again to continue")


def _work(
    job: Job, connection: Connection[Any, Any], parent: int, inherited: list[Connection[Any, Any]]
) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread in each worker
    for other in inherited:  # or the end of the parent would not be the end of the pipes
        other.close()

    def report(advance: Advance) -> None:
        if os.getppid() != parent:
            os._exit(1)
        connection.send(advance)

    try:
        encoder = PartEncoder(job)
        while (number := _next(connection, parent)) is not None:
            connection.send(encoder.run(number, report))
    except (BrokenPipeError, EOFError):
        os._exit(1)  # the parent has died
    except TokpackError as error:
        _send_last(connection, error)
    except BaseException:
        _send_last(connection, traceback.format_exc())


def _next(connection: Connection[Any, Any], parent: int) -> int | None:
    while not connection.poll(1.0):
        if os.getppid() != parent:
            return None
    number: int | None = connection.recv()
    return number


def _send_last(connection: Connection[Any, Any], message: TokpackError | str) -> None:
    try:
        connection.send(message)
    except OSError:
        os._exit(1)

"""The workers of a run, in this process or in processes of their own, and the pipes to them.

The coordinator decides what they do. Neither texts nor tokens go through the pipes, only numbers
and places.
"""

from __future__ import annotations

import _thread
import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import traceback
import warnings
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.apart import enter, limit_met
from tokpack.display import brief
from tokpack.encoding.coordinator import (
    EncodeDocuments,
    EncodePart,
    Event,
    Segment,
    StorePiece,
    ToWorker,
)
from tokpack.encoding.part import no_memory
from tokpack.encoding.worker import Counters, Worker, place_of
from tokpack.errors import LimitError, RecordError, TokpackError, WorkerError
from tokpack.sources import line_base
from tokpack.storage import use_in_this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess

    from tokpack.encoding.coordinator import Coordinator
    from tokpack.encoding.piece import Job
    from tokpack.encoding.worker import Slots

POLL_SECONDS = 0.2
START_SECONDS = 30.0  # of a thread


def run_here(job: Job, counters: Any, coordinator: Coordinator, poll: Callable[[], None]) -> None:
    """Do all tasks with one worker, in this process.

    ``poll`` is called a few times a second, and may raise.
    """
    worker = Worker(job, Counters(counters), _DirectLink(coordinator, poll))
    try:
        worker.serve()
    finally:
        worker.close()


class _DirectLink:
    """The link of a worker that is in the same process as the run."""

    def __init__(self, coordinator: Coordinator, poll: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._look = poll

    def send(self, event: Event) -> None:
        self._coordinator.event(0, event)

    def poll(self) -> ToWorker | None:
        self._look()
        outbox = self._coordinator.outbox
        return outbox.popleft()[1] if outbox else None

    def wait(self) -> ToWorker | None:
        while True:
            self._coordinator.feed()
            message = self.poll()
            if message is not None or self._coordinator.finished:
                return message
            if not self._coordinator.read_documents():
                raise AssertionError("a run that is not finished has nothing to do")


class _Process(NamedTuple):
    """A worker's process, and the run's end of its pipe."""

    process: BaseProcess
    connection: Connection[Any, Any]


class Processes:
    """Workers in processes of their own; a context that starts and ends them."""

    def __init__(self, job: Job, counters: Sequence[Any], slots: Slots | None) -> None:
        self._job = job
        self._counters = counters
        self._slots = slots
        self._workers: list[_Process] = []

    def __enter__(self) -> Processes:
        # A fork starts in a millisecond and shares what the parent has loaded, such as the
        # tokenizer. The parent must not have started threads: a fork copies all locks but only the
        # forking thread, so a lock held by another thread would stay locked for ever.
        forks = sys.platform == "linux"
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        for counters in self._counters:
            ours, theirs = context.Pipe()
            # A fork also inherits the run's ends of the pipes of earlier workers, and must close
            # them: a worker notices that the run has died only when nobody has the other end of its
            # pipe open.
            inherited = [worker.connection for worker in self._workers] + [ours]
            process = context.Process(
                target=_work,
                args=(self._job, counters, self._slots, theirs),
                kwargs={
                    "parent": os.getpid(),
                    "inherited": inherited if forks else [],
                },
                daemon=True,
            )
            with warnings.catch_warnings():  # Python warns of forks if a library has idle threads
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()  # else the run would not notice a dead worker
            self._workers.append(_Process(process, ours))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()

    def run(self, coordinator: Coordinator, poll: Callable[[], None]) -> None:
        """Do all tasks. Raises WorkerError if a worker dies, or the error that a worker raised.

        ``poll`` is called a few times a second, and may raise.
        """
        numbers = {worker.connection: n for n, worker in enumerate(self._workers)}
        while True:
            coordinator.feed()
            self._send(coordinator)
            if coordinator.finished:
                return
            seconds = 0 if coordinator.read_documents() else POLL_SECONDS
            # The connection of a dead worker is ready too, at end of file.
            for ready in wait(list(numbers), seconds):
                number = numbers[ready]  # type: ignore[index]
                for event in self._receive(coordinator, number):
                    if isinstance(event, TokpackError | str):
                        raise self._failure(coordinator, number, event)
                    coordinator.event(number, event)
            poll()

    def _send(self, coordinator: Coordinator) -> None:
        """Send each worker all its messages at once."""
        messages: dict[int, list[ToWorker]] = {}
        while coordinator.outbox:
            number, message = coordinator.outbox.popleft()
            messages.setdefault(number, []).append(message)
        for number, batch in messages.items():
            try:
                self._workers[number].connection.send(batch)
            except OSError:
                raise self._death(coordinator, number) from None

    def _receive(self, coordinator: Coordinator, number: int) -> list[Any]:
        try:
            events: list[Any] = self._workers[number].connection.recv()
        except (EOFError, OSError):
            raise self._death(coordinator, number) from None
        return events

    def _failure(
        self, coordinator: Coordinator, number: int, error: TokpackError | str
    ) -> TokpackError:
        if isinstance(error, TokpackError):
            return error
        what = self._at(coordinator, number)
        return WorkerError(f"a worker failed at {what}; run again to continue\n{error}")

    def _death(self, coordinator: Coordinator, number: int) -> TokpackError:
        """The error of a dead worker: the last one that it sent, or how it ended."""
        process, connection = self._workers[number]
        # Its last messages may still be in the pipe, after unread events.
        with contextlib.suppress(EOFError, OSError):
            while True:
                for event in connection.recv():
                    if isinstance(event, TokpackError | str):
                        return self._failure(coordinator, number, event)
        process.join(5)
        code = process.exitcode
        if reason := limit_met(code):
            return self._limited(number, reason)
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            how = f"was killed by {name}"
        if code in (1, -signal.SIGKILL):
            how += " (is there enough memory?)"
        return WorkerError(
            f"a worker {how} at {self._at(coordinator, number)}; run again to continue"
        )

    def _limited(self, number: int, reason: str) -> TokpackError:
        """The error of a worker that has exceeded a limit."""
        options = self._job.options
        template = brief(options.chat_template or f"tokenizer {self._job.setup.tokenizer.name}")
        reason = f"{template}: the chat template {reason}"
        if (record := self._record(number)) is None:
            return LimitError(reason)
        name, line, unit = record
        advice = "no sane template needs that much: fix it, or take the record out of the input"
        return RecordError(name, line, reason, advice, unit)

    def _record(self, number: int) -> tuple[str, int, str] | None:
        """The record that a worker is rendering (source, number, unit of that), or None."""
        part, source_number, before, record = place_of(self._counters[number])
        if not record:
            return None
        source = self._job.sources[source_number]
        before = line_base(source, self._job.parts[part]) if before < 0 else before
        return source.name, before + record, source.unit

    def _at(self, coordinator: Coordinator, number: int) -> str:
        """What a worker is doing, in words."""
        if (record := self._record(number)) is not None:
            name, line, unit = record
            return f"{name}, {unit or 'line'} {line}"
        task = coordinator.first_task(number)
        if isinstance(task, EncodePart | Segment | EncodeDocuments):
            return self._job.describe(task.number)
        if isinstance(task, StorePiece):
            return f"the copy of {self._job.describe(task.id[0])}"
        return "the work folder" if task is not None else "its wait for work"


class _PipeLink:
    """The link of a worker in its own process.

    A thread receives messages, even while the worker is busy. Otherwise run and worker could
    deadlock, each blocked in sending to the other because both pipes are full. Events are
    collected, and sent together when the worker looks for messages.
    """

    def __init__(self, connection: Connection[Any, Any], parent: int) -> None:
        self._connection = connection
        self._parent = parent
        self._inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._outbox: list[Event] = []

    def start(self) -> None:
        """Start the receiving thread. MemoryError if there is not enough memory for it."""
        runs = _thread.allocate_lock()
        runs.acquire()
        # Not Thread.start: it waits for ever if the thread dies before it reports that it runs.
        try:
            _thread.start_new_thread(self._receive, (runs,))
        except RuntimeError as error:
            raise MemoryError(str(error)) from error
        if not runs.acquire(timeout=START_SECONDS):
            raise MemoryError("a thread did not start")

    def send(self, event: Event) -> None:
        self._outbox.append(event)

    def poll(self) -> ToWorker | None:
        self._flush()
        return None if self._inbox.empty() else self._inbox.get()

    def wait(self) -> ToWorker | None:
        self._flush()
        while True:
            try:
                return self._inbox.get(timeout=1.0)
            except queue.Empty:  # an orphan gets another parent: then the run has died
                if os.getppid() != self._parent:
                    os._exit(1)

    def _receive(self, runs: _thread.LockType) -> None:
        runs.release()
        try:
            while True:
                for message in self._connection.recv():
                    self._inbox.put(message)
        finally:
            os._exit(1)  # the run has died, or there is not enough memory for its message

    def fail(self, error: TokpackError | str) -> None:
        """Send the error that ends this worker."""
        try:
            self._connection.send([*self._outbox, error])
        except OSError:
            os._exit(1)

    def _flush(self) -> None:
        if self._outbox:
            self._connection.send(self._outbox)
            self._outbox = []


def _work(
    job: Job,
    counters: Any,
    slots: Slots | None,
    connection: Connection[Any, Any],
    *,
    parent: int,
    inherited: list[Connection[Any, Any]],
) -> None:
    """The main function of a worker process."""
    enter()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread in each worker
    use_in_this_process()  # a worker forks nothing, so it may open stores itself
    for other in inherited:  # see Processes.__enter__
        other.close()
    link = _PipeLink(connection, parent)
    try:
        link.start()
        Worker(job, Counters(counters), link, slots=slots).serve()
    except (BrokenPipeError, EOFError):
        os._exit(1)  # the parent has died
    except TokpackError as error:
        link.fail(error)
    except MemoryError as error:
        link.fail(no_memory("its start", error))
    except BaseException:
        link.fail(traceback.format_exc())

"""A process that opens stores for a process that may fork.

obstore has threads, and a fork copies only the forking thread: in a fork of a process that has used
obstore, a request waits for ever. So a process that may fork never loads it, but sends its requests
to this process, over one connection for each request in progress; each connection has a thread
here. The requests are those of ``Backend``; results and errors are sent back.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import traceback
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from tokpack.errors import TokpackError, WorkerError
from tokpack.storage.objects.trouble import ChangedError, MissingError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection


OPERATIONS = (
    *("stat", "below", "level", "read", "put", "delete"),
    *("begin", "part", "copy_part", "complete", "abort"),
    "create_repository",
)
_PASSED_ON = (TokpackError, ChangedError, MissingError, TransientError)


class Helper:
    """A ``Backend`` that passes its requests to another process, started with ``environment``."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._parent = os.getpid()
        self._idle: list[Connection[Any, Any]] = []
        self._control, theirs = socket.socketpair()
        with theirs:
            # In its own session, so that Ctrl-C does not reach it: the run may need the store to
            # clean up. It ends when the run closes the socket or dies.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tokpack.storage.objects", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=environment
                | {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
            )

    def __getattr__(self, name: str) -> Any:
        if name not in OPERATIONS:
            raise AttributeError(name)
        return partial(self._ask, name)

    def shut_down(self) -> None:
        """End the process; in a fork of its starter, only close what was inherited."""
        if self._control.fileno() < 0:
            return
        self._idle.clear()
        self._control.close()
        if self._process is None:  # it could not be started
            return
        if os.getpid() == self._parent:
            self._process.terminate()
            self._process.wait()
        else:
            # It is not a child of this fork: set a return code, so that Popen does not wait for it.
            self._process.returncode = 0

    __del__ = shut_down

    def _ask(self, *request: Any) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            connection.send(request)
            done, value = connection.recv()
        except (OSError, EOFError) as error:
            # An environment that differs makes ``access`` start a new helper for the next
            # request, which is this one again.
            self.environment.clear()
            raise TransientError("the process that opens stores has died", silent=True) from error
        # Not in a finally: after Ctrl-C the answer may still arrive on this connection, and would
        # be taken for that of the next request.
        self._idle.append(connection)
        if done:
            return value
        if isinstance(value, _PASSED_ON):
            raise value
        raise WorkerError(f"a store could not be used: {value}")

    def _connect(self) -> Connection[Any, Any]:
        from multiprocessing.connection import Connection

        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # if the helper has died, the request will fail
            socket.send_fds(self._control, [b"."], [theirs.fileno()])
        return Connection(ours.detach())


def serve(control: socket.socket, backend: Any) -> None:
    """Answer requests, through connections that arrive by ``control``, until that is closed."""
    from multiprocessing.connection import Connection

    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except OSError:
            descriptors = []
        if not descriptors:  # the requesting process has ended: nobody waits for an answer
            os._exit(0)
        connection: Connection[Any, Any] = Connection(descriptors[0])
        threading.Thread(target=_answer, args=(connection, backend), daemon=True).start()


def _answer(connection: Connection[Any, Any], backend: Any) -> None:
    while True:
        try:
            operation, *arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            value = getattr(backend(arguments[0]), operation)(*arguments)
            sendable = {"read": bytes, "below": list}.get(operation)
            answer: tuple[bool, Any] = True, sendable(value) if sendable else value
        except _PASSED_ON as error:
            answer = False, error
        except Exception:
            answer = False, traceback.format_exc()
        try:
            connection.send(answer)
        except OSError:
            return


T = TypeVar("T")


class Threads:
    """At most ``most`` daemon threads that wait for stores.

    Unlike an executor's threads, they do not keep a process from ending.
    """

    def __init__(self, most: int) -> None:
        self._most, self._begun = most, 0
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = (
            SimpleQueue()
        )

    def submit(self, act: Callable[..., T], *arguments: Any) -> Future[T]:
        """The future of a call that a thread will make."""
        future: Future[T] = Future()
        self._jobs.put((future, act, arguments))
        if self._begun < self._most:
            self._begun += 1
            threading.Thread(target=self._work, daemon=True).start()
        return future

    def map(self, act: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """The results of ``act`` for each item. After an error, calls not yet begun are dropped."""
        items = list(items)
        if len(items) == 1:
            return [act(items[0])]
        futures = [self.submit(act, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            wait([future for future in futures if not future.cancel()])
            raise

    def _work(self) -> None:
        while True:
            future, act, arguments = self._jobs.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(act(*arguments))
                except BaseException as error:
                    future.set_exception(error)
            del future, act, arguments  # free their memory before waiting for the next job

"""A process that opens stores for one that may fork, whose own threads a fork would not copy.

obstore waits for ever in a fork of a process that has used it. So whoever may fork asks this
process, through one connection for each request that is under way; each connection has a thread
here. The requests are those of ``Backend``, and what they give or raise is passed on.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokpackError, WorkerError
from tokpack.stores.trouble import ChangedError, MissingError, TransientError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

OPERATIONS = (
    *("stat", "below", "level", "read", "put", "delete"),
    *("begin", "part", "copy_part", "complete", "abort"),
    "create_repository",
)
_PASSED_ON = (TokpackError, ChangedError, MissingError, TransientError)


class Helper:
    """A ``Backend`` whose work another process does, with an ``environment`` of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._parent = os.getpid()
        self._idle: list[Connection[Any, Any]] = []
        self._control, theirs = socket.socketpair()
        with theirs:
            # In a session of its own, so that Ctrl-C ends the run, and the run ends this.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tokpack.stores", str(theirs.fileno())],
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
        """End the process; in a fork of the one that began it, only leave it alone."""
        if self._control.fileno() < 0:
            return
        self._idle.clear()
        self._control.close()
        if self._process is None:  # it could not begin
            return
        if os.getpid() == self._parent:
            self._process.terminate()
            self._process.wait()
        else:
            self._process.returncode = 0  # not a child of this process

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
            self.environment.clear()  # the next request begins another one
            raise TransientError("the process that opens stores has died", silent=True) from error
        # One whose request was interrupted is not used again: its answer may still come.
        self._idle.append(connection)
        if done:
            return value
        if isinstance(value, _PASSED_ON):
            raise value
        raise WorkerError(f"a store could not be used: {value}")

    def _connect(self) -> Connection[Any, Any]:
        from multiprocessing.connection import Connection

        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # it has died, as the connection will say
            socket.send_fds(self._control, [b"."], [theirs.fileno()])
        return Connection(ours.detach())


def serve(control: socket.socket, backend: Any) -> None:
    """Answer the requests of connections that come by ``control``, until that is closed."""
    from multiprocessing.connection import Connection

    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except OSError:
            descriptors = []
        if not descriptors:
            os._exit(0)  # requests under way are of no use to anybody
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
            answer: tuple[bool, Any] = True, _sendable(operation, value)
        except _PASSED_ON as error:
            answer = False, error
        except Exception:
            answer = False, traceback.format_exc()
        try:
            connection.send(answer)
        except OSError:
            return


def _sendable(operation: str, value: Any) -> Any:
    if operation == "read":
        return bytes(value)
    return list(value) if operation == "below" else value

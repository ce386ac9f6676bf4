"""A process of its own that opens stores for one that will fork, or has threads of its own to keep.

Stores have threads that do not survive a fork, and a run forks its workers after it has looked at
its inputs. So that process asks this one; a worker, which forks nothing, opens stores itself.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokpackError, WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_MAIN = "import sys; sys.path[:] = {path!r}; from tokpack.stores.helper import serve; serve({fd})"


class Helper:
    """The methods of ``Service``, done by another process; begun when it is first asked."""

    def __init__(self, settings: dict[str, str]) -> None:
        from multiprocessing.connection import Connection

        self.settings = settings
        self._parent = os.getpid()
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            code = _MAIN.format(path=sys.path, fd=theirs.fileno())
            # In a session of its own, so that Ctrl-C ends the run, and the run ends this.
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._connection: Connection[Any, Any] = Connection(ours.detach())

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: self._call(name, args, named)

    def shut_down(self) -> None:
        """End the process; in one that was forked from its own, only leave it alone."""
        if self._connection.closed:
            return
        self._connection.close()
        if os.getpid() == self._parent:
            self._process.terminate()  # others may have been forked with this connection
            self._process.wait()
        else:
            self._process.returncode = 0

    __del__ = shut_down

    @property
    def is_closed(self) -> bool:
        """Whether it has ended: what was open in it is gone."""
        return self._connection.closed

    def _call(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if name == "close" and self.is_closed:
            return None
        try:
            with self._lock:
                self._connection.send((name, args, named))
                done, value = self._connection.recv()
        except (OSError, EOFError) as error:
            raise WorkerError("the process that reads from stores has died; run again") from error
        except BaseException:  # a signal: what is left of the answer would be taken for the next
            self.shut_down()
            raise
        if done:
            return value
        if isinstance(value, TokpackError):
            raise value
        raise WorkerError(f"a store could not be used: {value}")


def serve(descriptor: int) -> None:
    """Answer requests until nobody can make any."""
    from multiprocessing.connection import Connection

    from tokpack.stores.service import Service

    service = Service()
    connection: Connection[Any, Any] = Connection(descriptor)
    while True:
        try:
            name, args, named = connection.recv()
        except (EOFError, OSError):  # OSError: it was killed
            os._exit(0)  # requests under way are of no use to anybody
        try:
            value = getattr(service, name)(*args, **named)
            answer = True, bytes(value) if name == "next" else value
        except TokpackError as error:
            answer = False, error
        except Exception:
            answer = False, traceback.format_exc()
        try:
            connection.send(answer)
        except OSError:
            os._exit(0)

"""Processes of tokpack's own, and limits of the system in them on what somebody's template does.

Nothing in a process can stop a call of C that goes on for hours, so the system does: it ends the
process, and its parent says why, and at which record. The process of a user is never limited.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from tokpack.errors import LimitError, TokpackError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence
    from types import TracebackType

SECONDS = 20  # of processor time, which does not depend on what else the machine does
MEMORY = 3 << 29  # bytes more than there are already
CHARACTERS = 1 << 28  # of a text

_TOO_MUCH_MEMORY, _TOO_LONG = 77, 78  # exit codes

_is_own = False  # whether this process may be limited, and end


def enter() -> None:
    """Say that this process is one of tokpack's own: on Linux, limits hold in it from now on."""
    global _is_own  # noqa: PLW0603 - of the process as a whole
    _is_own = sys.platform == "linux"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the parent decides
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def has_processes() -> bool:
    """Whether this process can have one of tokpack's own, in which limits hold."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def limit_met(code: int | None) -> str:
    """The limit that has ended a process with an exit code; empty for none."""
    return {
        -signal.SIGPROF: f"takes more than {SECONDS} s of processor time",
        _TOO_MUCH_MEMORY: f"takes more than {MEMORY >> 20} MiB of memory, or than there is",
        _TOO_LONG: f"writes more than {CHARACTERS} characters",
    }.get(code or 0, "")


class Limits:
    """Limits on memory, and on the time of what goes on without a word; a context.

    ``note`` is memory that is shared with the parent. Its last number is the record in work, from
    1 on; 0 for none.
    """

    def __init__(self, note: MutableSequence[int] | None = None) -> None:
        self._note: MutableSequence[int] = [0] if note is None else note
        self._again = float("inf")  # when the time is to begin anew

    def at(self, record: int) -> None:
        """Go on with a record."""
        self._note[-1] = record
        self.go_on()

    def go_on(self) -> None:
        """Go on with something else: the time begins anew, as it does now and then at least."""
        if time.monotonic() > self._again:  # a call of the system each time would take too long
            self._restart()

    def check(self, text: str) -> None:
        """End where a text is too long."""
        if len(text) > CHARACTERS:
            self._end(_TOO_LONG)

    def __enter__(self) -> None:
        if not _is_own:
            return
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            most = int(file.read().split()[5]) * resource.getpagesize() + MEMORY
        self._before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most if soft == resource.RLIM_INFINITY else min(most, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        self._restart()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not _is_own:
            return
        if isinstance(error, MemoryError):
            self._end(_TOO_MUCH_MEMORY)
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, self._before)
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._again, self._note[-1] = float("inf"), 0

    def _restart(self) -> None:
        self._again = time.monotonic() + SECONDS / 20
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # the system's own handler ends the process

    def _end(self, code: int) -> None:
        if _is_own:
            os._exit(code)  # its parent says why
        raise LimitError(f"the chat template {limit_met(code)}")


class Apart:
    """A function in a process of its own, which answers call after call until it is closed.

    Where there can be no such process, the function is called here. ``what`` it is in words, for
    LimitError where a limit has ended the process, and WorkerError where anything else has. What a
    function loads may start threads, which no fork has that comes later: that is a reason for a
    process, too. Arguments and what the function gives are pickled.
    """

    def __init__(self, what: str, function: Callable[..., Any]) -> None:
        self._what, self._function = what, function
        self._owner = os.getpid()  # a fork of it has no part in the process
        self._process: Any = None
        if has_processes():
            context = multiprocessing.get_context("fork")
            self._pipe, theirs = context.Pipe()
            with warnings.catch_warnings():  # a fork warns of the idle threads of libraries
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process = context.Process(target=self._answer, args=(theirs,), daemon=True)
                self._process.start()
            theirs.close()

    def __call__(self, *arguments: Any) -> Any:
        if self._process is None:
            return self._function(*arguments)
        try:
            self._pipe.send(arguments)
            value = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise self._ended() from None
        except BaseException:
            self.close()  # an answer that nobody takes would be taken for the next one
            raise
        if isinstance(value, TokpackError):
            raise value
        return value

    @property
    def is_there(self) -> bool:
        """Whether it can be called, in this process."""
        there = self._process is None or self._process.exitcode is None
        return self._owner == os.getpid() and there

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()

    def _answer(self, pipe: Any) -> None:
        enter()
        self._pipe.close()  # or this process would keep itself alive
        while True:
            try:
                arguments = pipe.recv()
            except EOFError:
                return
            try:
                answer = self._function(*arguments)
            except TokpackError as error:
                answer = error
            except MemoryError as error:
                answer = WorkerError(f"not enough memory for {self._what}: {error}")
            except Exception:
                answer = WorkerError(f"{self._what} has failed\n{traceback.format_exc()}")
            pipe.send(answer)

    def _ended(self) -> TokpackError:
        self._process.join()
        code = self._process.exitcode
        if reason := limit_met(code):
            return LimitError(f"{self._what} {reason}")
        return WorkerError(
            f"the process for {self._what} was ended by something else (exit code {code})"
        )


def apart(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function once in a process of its own, see ``Apart``; arguments are not pickled."""
    with closing(Apart(what, partial(function, *arguments))) as call:
        return call()

"""Calls in a separate process, where the system limits the time and memory of chat templates.

A chat template is a foreign program, and may spend hours in one call of C, which nothing in the
same process can interrupt. So it runs in another process, which the system ends; the parent reports
the reason and the record. The user's own process is never limited.
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
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from tokpack.errors import LimitError, TokpackError, UsageError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence
    from types import TracebackType

SECONDS = 20  # of processor time, which does not depend on load
MEMORY = 3 << 29  # bytes on top of what the process uses already
CHARACTERS = 1 << 28  # of a text

_TOO_MUCH_MEMORY, _TOO_LONG = 77, 78  # exit codes

_is_own = False  # this process belongs to tokpack, so that limits may end it


def enter() -> None:
    """Declare this process tokpack's own: on Linux, ``Limits`` may end it from now on."""
    global _is_own  # noqa: PLW0603 - of the process as a whole
    _is_own = sys.platform == "linux"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent acts
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def has_processes() -> bool:
    """Whether this process can start one in which limits hold."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def limit_met(code: int | None) -> str:
    """The limit that ended a process with this exit code, in words; "" for none."""
    return {
        -signal.SIGPROF: f"takes more than {SECONDS} s of processor time",
        _TOO_MUCH_MEMORY: f"takes more than {MEMORY >> 20} MiB of memory, or than there is",
        _TOO_LONG: f"writes more than {CHARACTERS} characters",
    }.get(code or 0, "")


class Limits:
    """Limits on memory and on the processor time for each step of work; a context.

    ``note`` is memory shared with the parent. Its last number is the current record, from 1, or 0
    for none; the parent reads it after the system has ended this process.
    """

    def __init__(self, note: MutableSequence[int] | None = None) -> None:
        self._note: MutableSequence[int] = [0] if note is None else note
        self._again = float("inf")  # earliest restart of the timer

    def at(self, record: int) -> None:
        """Note the beginning of work on a record."""
        self._note[-1] = record
        self.go_on()

    def go_on(self) -> None:
        """Note progress: restart the timer, unless it was restarted within the last second."""
        if time.monotonic() > self._again:  # a system call per record would be slow
            self._restart()

    def check(self, text: str) -> None:
        """End the process if a text is too long."""
        if len(text) > CHARACTERS:
            self._end(_TOO_LONG)

    def __enter__(self) -> None:
        if not _is_own:
            return
        import resource

        # The limit includes what the process uses already, such as a tokenizer: add to that.
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
        # No Python handler, which could not run during a call of C: by default, the timer's signal
        # ends the process.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)

    def _end(self, code: int) -> None:
        if _is_own:
            os._exit(code)  # the parent reports the reason, see ``limit_met``
        raise LimitError(f"the chat template {limit_met(code)}")


class Apart:
    """A function in a separate process, which answers calls until it is closed.

    If this process cannot start one, the function is called here. ``what`` is its name in messages:
    LimitError if a limit has ended the process, WorkerError if anything else has. A separate
    process also keeps libraries with threads out of this one, which could not fork safely
    afterwards. Arguments and results are pickled; UsageError for arguments that cannot be.
    """

    def __init__(self, what: str, function: Callable[..., Any]) -> None:
        self._what, self._function = what, function
        self._owner = os.getpid()  # forks of this process must not use the pipe
        self._process: Any = None
        if has_processes():
            context = multiprocessing.get_context("fork")
            self._pipe, theirs = context.Pipe()
            with warnings.catch_warnings():  # Python warns of forks when a library has idle threads
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process = context.Process(target=self._answer, args=(theirs,), daemon=True)
                self._process.start()
            theirs.close()

    def __call__(self, *arguments: Any) -> Any:
        if self._process is None:
            return self._function(*arguments)
        message = _pickled(self._what, arguments)
        try:
            self._pipe.send_bytes(message)
            value = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise self._ended() from None
        except BaseException:
            # After Ctrl-C, say, the answer may still arrive, and must not be taken for the next
            # call's.
            self.close()
            raise
        if isinstance(value, TokpackError):
            raise value
        return value

    @property
    def is_there(self) -> bool:
        """Whether it can still be called, and from this process."""
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
        # A fork also has the parent's end of the pipe. Close it, or this process would not notice
        # below that the parent has ended, and would never end itself.
        self._pipe.close()
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


def _pickled(what: str, arguments: tuple[Any, ...]) -> memoryview:
    try:
        return ForkingPickler.dumps(arguments)
    except Exception as error:  # the object's own code may raise anything
        raise UsageError(f"the arguments of {what} cannot be pickled: {error}") from error


def apart(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, called once in a process of its own; its arguments are not pickled.

    Raises as ``Apart`` does.
    """
    with closing(Apart(what, partial(function, *arguments))) as call:
        return call()

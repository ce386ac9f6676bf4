"""Call a library that cannot be interrupted, for as long as the call may take."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_SECONDS = 0.5  # between two looks at what a call has taken
Result = TypeVar("Result")


class TooLongError(Exception):
    """A call took more processor time than it may. Its thread goes on: nothing can end it."""


class _Call(threading.Thread, Generic[Result]):
    """A call in a thread that the end of the process ends."""

    result: Result
    error: BaseException | None = None
    _clock: int | None = None  # of the thread, where the system has such clocks

    def __init__(self, function: Callable[[], Result]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._began = time.process_time()

    def run(self) -> None:
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            self.result = self._function()
        except BaseException as error:  # a panic of Rust code is no Exception
            self.error = error

    def seconds(self) -> float:
        """Processor time of the call; of the whole process where no thread has a clock."""
        if self._clock is None:
            return time.process_time() - self._began
        with contextlib.suppress(OSError):  # it has just ended
            return time.clock_gettime(self._clock)
        return 0.0


def bounded(function: Callable[[], Result], seconds: float) -> Result:
    """What ``function`` returns or raises; TooLongError after so many seconds of processor time.

    The function must let other threads run. Ctrl-C ends the wait, as an error does.
    """
    call = _Call(function)
    call.start()
    while call.is_alive():
        call.join(min(seconds, _LOOK_SECONDS))
        if call.is_alive() and call.seconds() > seconds:
            raise TooLongError
    if call.error is not None:
        raise call.error
    return call.result

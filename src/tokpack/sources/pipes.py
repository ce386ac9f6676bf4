"""The standard input and named pipes, which can be looked at before they are read.

The first bytes that are read are kept, up to REPLAY_BYTES: so the format is found, and the begin of
the data looked at, before all is read from the start. A forked worker inherits the pipe with these
bytes; a spawned one cannot read its parent's pipe.
"""

from __future__ import annotations

import os
import threading

from tokpack.errors import InputError
from tokpack.sources.base import STDIN

REPLAY_BYTES = 8 << 20


class Pipe:
    """A pipe, and in ``kept`` the bytes read from it so far; None once these are too many."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.kept: bytearray | None = bytearray()
        self._lock = threading.Lock()

    def readinto(self, view: memoryview, at: int) -> int:
        """Bytes from ``at`` on, which is where the caller's last ones ended."""
        with self._lock:
            return self._readinto(view, at)

    def _readinto(self, view: memoryview, at: int) -> int:
        if self.kept is not None and at < len(self.kept):
            count = min(len(view), len(self.kept) - at)
            view[:count] = self.kept[at : at + count]
            return count
        count = os.readv(self.descriptor, [view])
        if self.kept is not None:
            self.kept += view[:count]
            if len(self.kept) > REPLAY_BYTES:
                self.kept = None
        return count


class PipeReader:
    """One reading of a pipe, from its start."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._at = 0

    def readinto(self, view: memoryview) -> int:
        count = self._pipe.readinto(view, self._at)
        self._at += count
        return count

    def read(self, size: int) -> bytes:
        buffer = bytearray(size)
        count = self.readinto(memoryview(buffer))
        return bytes(buffer[:count])

    def close(self) -> None:
        """Leave the pipe open: it may be read again from what is kept."""


_pipes: dict[str, Pipe] = {}
_opening = threading.Lock()


def open_pipe(path: str, name: str) -> PipeReader:
    """Read a pipe from its start; InputError where its start is gone."""
    with _opening:
        if path not in _pipes:
            descriptor = os.dup(0) if path == STDIN else os.open(path, os.O_RDONLY)
            _pipes[path] = Pipe(descriptor)
        pipe = _pipes[path]
    if pipe.kept is None:
        raise InputError(f"{name}: a pipe can be read only once; save it to a file first")
    return PipeReader(pipe)

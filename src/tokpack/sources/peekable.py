"""Streams whose first bytes can be looked at before they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.sources.detect import HEAD_BYTES
from tokpack.sources.streams import DerivedStream, fill

if TYPE_CHECKING:
    from tokpack.sources.streams import Stream

READ_BYTES = 256 << 10


class PeekableStream(DerivedStream):
    """A stream whose first bytes are known: ``head``."""

    def __init__(self, stream: Stream, head: bytes | None = None) -> None:
        super().__init__(stream)
        self.head = read_exactly(stream, HEAD_BYTES) if head is None else head
        self._rest = memoryview(self.head)

    def readinto(self, view: memoryview) -> int:
        if not self._rest:
            return self._stream.readinto(view)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def read_exactly(stream: Stream, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the stream's end, and without trusting ``size``."""
    text = bytearray()
    while len(text) < size:
        buffer = bytearray(min(size - len(text), READ_BYTES))
        count = fill(stream, memoryview(buffer))
        text += buffer[:count]
        if count < len(buffer):
            break
    return bytes(text)

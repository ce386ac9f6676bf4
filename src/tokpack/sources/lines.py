"""Cut a stream into blocks of whole lines, and keep to the lines that a part owns.

A part of a file that holds the bytes (begin, end] owns the lines that begin there, the first part
also the line at 0. These lie behind the first newline at or after ``begin``, up to and with the
first newline at or after ``end``. So no part looks at a byte before ``begin``, and two neighbours
share no line. The stream of a part begins at ``begin``; its region is counted from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokpack.sources.base import BOM, RAW_BYTES_KEPT
from tokpack.sources.streams import BoundedStream, fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.sources.streams import Stream

_NEWLINE = 0x0A
_LEAST_BLOCK = 16


@dataclass
class LineBlock:
    """Whole lines, each with its \\n, which only the last line of a stream may lack.

    A line over the limit comes alone, as ``too_long``, with only its beginning in ``data``;
    ``length`` is what was read for the block, ``stored`` what was taken from the file for it:
    the same, unless the stream decompresses. ``data`` is valid until the next block.
    """

    data: memoryview
    length: int
    stored: int
    too_long: bool = False


def count_newlines(data: memoryview) -> int:
    """How many line feeds there are in some bytes."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _NEWLINE))


class LineReader:
    """Reads the blocks of a region of a stream, in order, through one buffer.

    The buffer has ``block_bytes``. It grows for a longer line, up to ``max_line_bytes``; a line
    that is longer still is passed over without holding it. The blocks do not depend on how the
    stream gives its bytes.
    """

    def __init__(self, stream: Stream, block_bytes: int, max_line_bytes: int) -> None:
        self._stream = stream
        self._most = max(max_line_bytes, _LEAST_BLOCK) + 1  # with the newline
        self._block_bytes = min(max(block_bytes, _LEAST_BLOCK), self._most)
        self._buffer = bytearray(self._block_bytes)
        self._view = memoryview(self._buffer)
        self._base = 0  # where in the stream the buffer begins
        self._cursor = 0  # what lies before it is done with
        self._filled = 0
        self._at_end = False

    def blocks(self, region: BoundedStream) -> Iterator[LineBlock]:
        """The blocks of the region, of which there may be none."""
        if not region.skips_first_line:
            self._skip_bom()
        elif not self._skip_line_at(0) or self.position > region.end:
            return
        begin = self.position  # a BOM can push it beyond the region's end
        while self.position <= max(region.end, begin):
            newline = self._last_newline(region)
            if newline >= 0:
                yield self._take(newline + 1)
            elif self._filled - self._cursor == self._most:
                yield self._pass_over_line()
            elif not self._at_end:
                self._refill()
            else:
                if self._cursor < self._filled:
                    yield self._take(self._filled)
                return

    @property
    def position(self) -> int:
        """Where in the stream the last block ended."""
        return self._base + self._cursor

    def _last_newline(self, region: BoundedStream) -> int:
        """Index of the newline that ends the region, else of the last one here, else -1."""
        end = region.end - self._base
        if end < self._filled:
            newline = self._buffer.find(b"\n", max(end, self._cursor), self._filled)
            if newline >= 0:
                return newline
        return self._buffer.rfind(b"\n", self._cursor, self._filled)

    def _take(self, end: int) -> LineBlock:
        data = self._view[self._cursor : end]
        self._cursor = end
        return LineBlock(data, len(data), len(data))

    def _pass_over_line(self) -> LineBlock:
        begin = self.position
        raw = bytes(self._view[self._cursor : self._cursor + RAW_BYTES_KEPT])
        self._skip_line_at(self._base + self._filled)
        length = self.position - begin
        return LineBlock(memoryview(raw), length, length, too_long=True)

    def _skip_line_at(self, position: int) -> bool:
        """Go behind the first newline at or after ``position``; False where there is none."""
        while True:
            begin = max(position - self._base, self._cursor)
            newline = self._buffer.find(b"\n", begin, self._filled)
            self._cursor = newline + 1 if newline >= 0 else self._filled
            if newline >= 0 or self._at_end:
                return newline >= 0
            self._refill()

    def _skip_bom(self) -> None:
        self._refill()
        if self._buffer.startswith(BOM) and self._filled >= len(BOM):
            self._cursor = len(BOM)

    def _refill(self) -> None:
        """Move the unfinished line to the front, make room if it needs more, and read."""
        tail = self._filled - self._cursor
        size = len(self._buffer)
        if 2 * tail > size:  # else lines near its size would be moved again and again
            size = 2 * size if 3 * size < self._most else self._most  # one step less at the end
        elif size > self._block_bytes and tail <= self._block_bytes // 2:
            size = self._block_bytes
        view = self._view
        if size != len(self._buffer):
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
        self._view[:tail] = view[self._cursor : self._filled]
        self._base += self._cursor
        self._cursor = 0
        self._filled = tail + fill(self._stream, self._view[tail:])
        self._at_end = self._filled < size

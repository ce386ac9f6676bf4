"""Cut a stream into blocks of whole lines, and keep to the lines that a part owns.

A region of a stream owns the lines that begin in (begin, end], the first one also the line at 0. So
it is what lies behind the first newline at or after ``begin``, up to and with the first newline at
or after ``end``: no region looks at a byte before its own, and regions that touch share no line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokpack.sources.base import BOM, RAW_BYTES_KEPT
from tokpack.sources.streams import fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tokpack.sources.streams import Stream

_NEWLINE = 0x0A
_LEAST_BLOCK = 16
FOREVER = 1 << 62


@dataclass
class Region:
    """Bytes (begin, end] of a stream; ``end`` may be set later, while the stream is read.

    ``skips_first_line`` is False only where the stream begins at the beginning of a file.
    """

    segment: int = 0
    begin: int = 0
    end: int = FOREVER
    skips_first_line: bool = False


@dataclass
class Block:
    """Whole lines, each with its \\n, which only the last line of a stream may lack.

    ``skipped`` counts the lines between the block before and this one, which others own.
    A line over the limit comes alone, as ``too_long``, with only its beginning in ``data``;
    ``length`` is what was read for the block. ``data`` is valid until the next block.
    """

    segment: int
    data: memoryview
    length: int
    skipped: int
    too_long: bool = False


def stripes(index: int, count: int, stripe_bytes: int) -> Iterator[Region]:
    """The regions of part ``index`` of ``count``; they go on for ever."""
    number = index
    while True:
        begin = number * stripe_bytes
        yield Region(number, begin, begin + stripe_bytes, skips_first_line=number > 0)
        number += count


def count_newlines(data: memoryview) -> int:
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _NEWLINE))


class LineReader:
    """Reads the blocks of some regions of a stream, in order, through one buffer.

    The buffer has ``block_bytes``. It grows for a longer line, up to ``max_line_bytes``; a line
    that is longer still is passed over without holding it.
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
        self._skipped = 0

    def blocks(self, regions: Iterable[Region]) -> Iterator[Block]:
        for region in regions:
            if not region.skips_first_line:
                self._skip_bom()
            # A line that runs over several stripes was read to its end already.
            elif self._position <= region.begin and not self._skip_line_at(region.begin):
                return
            if not region.skips_first_line or self._position <= region.end:
                yield from self._region_blocks(region)
            if self._at_end and self._cursor == self._filled:
                return

    @property
    def _position(self) -> int:
        return self._base + self._cursor

    def _region_blocks(self, region: Region) -> Iterator[Block]:
        begin = self._position  # a BOM can push it beyond the region's end
        while True:
            newline = self._last_newline(region)
            if newline >= 0:
                yield self._take(region.segment, newline + 1)
            elif self._filled - self._cursor == self._most:
                yield self._pass_over_line(region.segment)
            if self._position > max(region.end, begin):
                return
            if self._at_end:
                if self._cursor < self._filled:
                    yield self._take(region.segment, self._filled)
                return
            self._refill()

    def _last_newline(self, region: Region) -> int:
        """Index of the newline that ends the region, else of the last one here, else -1."""
        end = region.end - self._base
        if end < self._filled:
            newline = self._buffer.find(b"\n", max(end, self._cursor), self._filled)
            if newline >= 0:
                return newline
        return self._buffer.rfind(b"\n", self._cursor, self._filled)

    def _take(self, segment: int, end: int) -> Block:
        data = self._view[self._cursor : end]
        self._cursor = end
        return Block(segment, data, len(data), self._take_skipped())

    def _take_skipped(self) -> int:
        skipped, self._skipped = self._skipped, 0
        return skipped

    def _pass_over_line(self, segment: int) -> Block:
        begin, skipped = self._position, self._take_skipped()
        raw = bytes(self._view[self._cursor : self._cursor + RAW_BYTES_KEPT])
        self._skip_line_at(self._base + self._filled)
        self._skipped = 0
        return Block(segment, memoryview(raw), self._position - begin, skipped, too_long=True)

    def _skip_line_at(self, position: int) -> bool:
        """Go behind the first newline at or after ``position``; False where there is none."""
        counted = position > 0  # else the line began before this stream, and is not its line
        while True:
            begin = max(position - self._base, self._cursor)
            newline = self._buffer.find(b"\n", begin, self._filled)
            end = newline + 1 if newline >= 0 else self._filled
            if counted:
                self._skipped += count_newlines(self._view[self._cursor : end])
            self._cursor = end
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
            size = min(2 * size, self._most)
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

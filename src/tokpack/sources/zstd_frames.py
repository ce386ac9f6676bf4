"""Where zstd frames begin and end, from their headers alone (RFC 8878); nothing is decompressed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MAGIC = b"\x28\xb5\x2f\xfd"
_RLE_BLOCK = 1
_RESERVED_BLOCK = 3


class DictionaryError(ValueError):
    """A frame cannot be read without the dictionary that it was compressed with."""


def is_skippable(magic: bytes) -> bool:
    """Whether these 4 bytes begin a frame that decoders skip."""
    return len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5


def _walk() -> Generator[tuple[int, int, bool], bytes, None]:
    """Ask for (offset, length) of each header, be sent its bytes; True where a frame begins.

    ValueError for what is no zstd.
    """
    at = 0
    while True:
        magic = yield at, 4, True
        if is_skippable(magic):
            at += 8 + int.from_bytes((yield at + 4, 4, False), "little")
            continue
        if magic != MAGIC:
            raise ValueError("no zstd frame")
        descriptor = (yield at + 4, 1, False)[0]
        single_segment = descriptor >> 5 & 1
        content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
        dictionary = (0, 1, 2, 4)[descriptor & 3]
        at += 5 + (1 - single_segment)
        if dictionary:
            number = int.from_bytes((yield at, dictionary, False), "little")
            raise DictionaryError(f"it was compressed with the dictionary {number}")
        at += content_size
        last = 0
        while not last:
            header = int.from_bytes((yield at, 3, False), "little")
            last, kind = header & 1, header >> 1 & 3
            if kind == _RESERVED_BLOCK:
                raise ValueError("reserved block type")
            at += 3 + (1 if kind == _RLE_BLOCK else header >> 3)
        at += 4 * (descriptor >> 2 & 1)


def frame_ends(file: int, give_up_at: int) -> Iterator[int]:
    """Yield the end of each frame of an open file, in order.

    Reads the headers alone: a map of the file would count as memory. Stops early, without an error,
    where the file is broken (the decoder will say so), and where no second frame begins before
    ``give_up_at``.
    """
    walk = _walk()
    at, length, _ = next(walk)
    size, frames = os.fstat(file).st_size, 0
    try:
        while len(header := os.pread(file, length, at)) == length:
            at, length, frame_begins = walk.send(header)
            if frame_begins:
                if at > size:
                    return
                frames += 1
                yield at
            elif frames == 0 and at > give_up_at:
                return
    except ValueError:
        return


class Follower:
    """Follows a stream of compressed bytes to know whether it ended at the end of a frame."""

    def __init__(self) -> None:
        self._walk = _walk()
        self._at, self._length, self._frame_begins = next(self._walk)
        self._seen = 0
        self._header = b""
        self._lost = False
        self.needs = ""  # why the stream cannot be read, where that is for want of a dictionary

    def feed(self, chunk: bytes) -> None:
        """Follow the next bytes of the stream."""
        base, self._seen = self._seen, self._seen + len(chunk)
        while not self._lost:
            begin = self._at + len(self._header) - base
            if begin >= len(chunk):
                return
            self._header += chunk[begin : begin + self._length - len(self._header)]
            if len(self._header) < self._length:
                return
            header, self._header = self._header, b""
            try:
                self._at, self._length, self._frame_begins = self._walk.send(header)
            except ValueError as error:
                self._lost = True  # the decoder meets the same bytes and says what is wrong
                self.needs = str(error) if isinstance(error, DictionaryError) else ""

    @property
    def whole(self) -> bool:
        """Whether the bytes so far are whole frames."""
        return self._lost or (self._frame_begins and self._at == self._seen and not self._header)

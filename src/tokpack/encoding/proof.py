"""The proof of a joined track: what lies there is what the workers wrote, part by part."""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.encoding.piece import Piece

_BLOCK = 1 << 20


class Proof:
    """Reads a joined file back, and takes a checksum of the bytes of each part, and of all.

    Called soon after the bytes are written, it finds them in the page cache. ``at`` is how far it
    has read.
    """

    def __init__(self) -> None:
        self.at = 0
        self._spans: deque[tuple[int, int]] = deque()  # (part, where its bytes end)
        self._parts: dict[int, xxhash.xxh3_64] = {}
        self._all = xxhash.xxh3_128()
        self._block = memoryview(bytearray(_BLOCK))

    def expect(self, number: int, end: int) -> None:
        """The bytes from the end of what was expected up to ``end`` are those of a part."""
        self._spans.append((number, end))

    def follow(self, file: int, most: int) -> bool:
        """Read what is expected, but only ``most`` bytes at once; whether that was all.

        Raises OSError, also where the file is shorter.
        """
        while self._spans and most > 0:
            number, end = self._spans[0]
            if self.at == end:
                self._spans.popleft()
                continue
            count = os.preadv(file, [self._block[: min(end - self.at, most)]], self.at)
            if not count:
                raise OSError(errno.EIO, "the file is shorter than it was")
            data = self._block[:count]
            self._all.update(data)
            self._parts.setdefault(number, xxhash.xxh3_64()).update(data)
            self.at += count
            most -= count
        return not self._spans

    def take(self, number: int) -> str:
        """The checksum, xxh3_64, of what was read of a part, which is complete."""
        return self._parts.pop(number, xxhash.xxh3_64()).hexdigest()

    def hexdigest(self) -> str:
        """The xxh3_128 of all that was read."""
        return self._all.hexdigest()


def spans_of(pieces: Sequence[Piece]) -> Iterator[tuple[int, list[int]]]:
    """(part, bytes of each track), segment by segment, as the join takes a group of pieces."""
    segments = sorted((s, piece.number, ends) for piece in pieces for s, *ends in piece.extents)
    joined: dict[int, list[int]] = {}
    for _, number, ends in segments:
        begins = joined.get(number, [0] * len(ends))
        yield number, [end - begin for begin, end in zip(begins, ends, strict=True)]
        joined[number] = ends

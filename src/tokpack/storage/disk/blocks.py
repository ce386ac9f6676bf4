"""Checksums of a file's blocks, which several processes can compute and check at the same time.

The checksum of a file is the XXH3-128 of the XXH3-64 of its blocks of 1 MiB, as 8 bytes each, big
endian, in order. A range that begins or ends inside a block has, for that block, the
checksum of its share.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES = 1 << 20
SUM_BYTES = 8


class BlockSums:
    """The checksums of a range of bytes that begins at offset ``at`` of a file, added in order."""

    def __init__(self, at: int = 0) -> None:
        self.at = at  # the offset after the last byte added
        self._sums = bytearray()
        self._state = xxhash.xxh3_64()
        self._open = False

    def add(self, data: memoryview) -> None:
        """Add the next bytes."""
        while (size := len(data)) >= (room := BLOCK_BYTES - self.at % BLOCK_BYTES):
            self._state.update(data[:room])
            self.at += room
            self._close()
            data = data[room:]
        if size:
            self._state.update(data)
            self._open = True
            self.at += size

    def finish(self) -> bytes:
        """The checksums of all bytes that were added."""
        if self._open:
            self._close()
        return bytes(self._sums)

    def _close(self) -> None:
        self._sums += self._state.digest()
        self._state.reset()
        self._open = False


def spans(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges into which block ends cut bytes [begin, end) of a file; each has one checksum."""
    while begin < end:
        stop = min(end, begin - begin % BLOCK_BYTES + BLOCK_BYTES)
        yield begin, stop
        begin = stop


def file_sums(file: int, begin: int, end: int) -> bytes | None:
    """The checksums of bytes [begin, end) of an open file, or None if it is shorter. OSError."""
    sums = BlockSums(begin)
    for data in read_blocks(file, begin, end):
        sums.add(data)
    return sums.finish() if sums.at == end else None


def read_blocks(file: int, begin: int, end: int) -> Iterator[memoryview]:
    """Bytes [begin, end) of an open file, block by block; fewer if the file is shorter.

    Each block is valid until the next one. Raises OSError.
    """
    buffer = memoryview(bytearray(min(BLOCK_BYTES, end - begin)))
    for at, stop in spans(begin, end):
        filled = 0
        while filled < stop - at:
            count = os.preadv(file, [buffer[filled : stop - at]], at + filled)
            if not count:
                break
            filled += count
        yield buffer[:filled]
        if filled < stop - at:
            return


def checksum_of_sums(sums: bytes) -> str:
    """The checksum, in hex, of a file whose blocks have these checksums."""
    return xxhash.xxh3_128_hexdigest(sums)


def block_sum(data: memoryview) -> bytes:
    """The checksum of the bytes of one block."""
    return xxhash.xxh3_64_digest(data)


def block_sums(begin: int, data: memoryview) -> bytes:
    """The checksums of bytes that begin at offset ``begin`` of a file."""
    sums = BlockSums(begin)
    sums.add(data)
    return sums.finish()

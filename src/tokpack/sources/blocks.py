"""Checksums of a file's blocks, by which an input is known again when its time has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from tokpack.errors import InputError
from tokpack.files import blocks
from tokpack.files.blocks import checksum_of_sums
from tokpack.sources.streams import fill

if TYPE_CHECKING:
    from tokpack.sources.base import Source

_DIGITS = 16  # hexadecimal ones of a block


def block_checksums(source: Source, begin: int, end: int, *, to_newline: bool = False) -> str:
    """xxh3_64, 16 hexadecimal digits, of each block of 1 MiB that holds any of bytes [begin, end).

    Blocks lie at multiples of their size, whatever ``begin`` is. With ``to_newline`` those up to
    the first newline at or behind ``end`` follow: all that a part of lines depends on. Read soon
    after the part was, they come from the page cache. InputError where the file cannot be read.
    """
    checksums = []
    block = memoryview(bytearray(max(1, min(blocks.BLOCK_BYTES, source.size))))
    at = begin - begin % blocks.BLOCK_BYTES
    try:
        with source.open() as file:
            file.seek(at)
            looking = to_newline and begin < end
            while at < end or looking:
                count = fill(file, block)  # type: ignore[arg-type]
                if not count:
                    break
                checksums.append(xxhash.xxh3_64_hexdigest(block[:count]))
                if looking and at + count > end:
                    looking = bytes(block[max(end - at, 0) : count]).find(b"\n") < 0
                at += count
    except OSError as error:
        raise InputError(f"{source.name}: {error.strerror} after {at} bytes") from error
    return "".join(checksums)


def content_checksum(sums: str) -> str:
    """XXH3-128, in hex, of the checksums of all blocks of a file, 8 bytes each."""
    return checksum_of_sums(bytes.fromhex(sums))


def joined_blocks(size: int, runs: list[tuple[int, str]]) -> str | None:
    """The checksums of all blocks of a file of ``size`` bytes.

    ``runs`` are (byte, checksums from the block that holds it on), in order; they may overlap.
    None where blocks are missing; ValueError where two runs contradict each other.
    """
    length = -(-size // blocks.BLOCK_BYTES) * _DIGITS
    if len(runs) == 1 and not runs[0][0]:
        return runs[0][1] if len(runs[0][1]) == length else None
    sums = bytearray()
    for begin, run in runs:
        at = begin // blocks.BLOCK_BYTES * _DIGITS
        if at > len(sums):
            return None
        before = sums[at:].decode()
        both = min(len(before), len(run))
        if before[:both] != run[:both]:
            raise ValueError("two checksums of one block")
        sums += run[both:].encode()
    return sums.decode() if len(sums) == length else None

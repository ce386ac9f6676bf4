"""Checksums of the pieces of a .bin that a store has put together, or of the whole of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import xxhash

from tokpack.files.blocks import BlockSums, checksum_of_sums

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.indexed.manifest import FileDigest


class SummedPiece(NamedTuple):
    """Bytes [begin, end) of a .bin: what the manifest says of them, and the checksum they have."""

    begin: int
    end: int
    digest: FileDigest
    checksum: str
    is_all: bool  # whether it is the only piece of the .bin


class PieceSums:
    """Takes the bytes of a .bin in order, and gives each piece when its last byte has come."""

    def __init__(self, digest: FileDigest) -> None:
        self._digests = digest.get("pieces", [digest])
        self._number = self._begin = self._at = 0
        self._state = self._new_state()

    def add(self, data: memoryview) -> Iterator[SummedPiece]:
        """Take the next bytes."""
        while len(data):
            yield from self.finish()
            if self._number == len(self._digests):
                return
            some = data[: self._end - self._at]
            if isinstance(self._state, BlockSums):
                self._state.add(some)
            else:
                self._state.update(some)
            self._at += len(some)
            data = data[len(some) :]

    def finish(self) -> Iterator[SummedPiece]:
        """The pieces that end here, those without bytes among them."""
        while self._number < len(self._digests) and self._at == self._end:
            state, digest = self._state, self._digests[self._number]
            checksum = (
                checksum_of_sums(state.finish())
                if isinstance(state, BlockSums)
                else state.hexdigest()
            )
            yield SummedPiece(self._begin, self._at, digest, checksum, len(self._digests) == 1)
            self._number, self._begin = self._number + 1, self._at
            self._state = self._new_state()

    @property
    def _end(self) -> int:
        return self._begin + self._digests[self._number]["bytes"]

    def _new_state(self) -> BlockSums | xxhash.xxh3_128:
        in_blocks = self._number < len(self._digests) and (
            "xxh3_blocks" in self._digests[self._number]
        )
        return BlockSums() if in_blocks else xxhash.xxh3_128()

"""Size and checksum of files, as manifests have them.

A .bin that a store has put together has those of its pieces, any other file its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Required, TypedDict

import xxhash

from tokpack.errors import FormatError
from tokpack.files.blocks import BlockSums, checksum_of_sums
from tokpack.files.durable import cannot_read

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

_READ = 1 << 20


class FileDigest(TypedDict, total=False):
    """Size and checksum of one file: of the whole of it, or of its blocks (``files.blocks``).

    A .bin that a store has put together has the digests of its ``pieces`` instead, in order.
    """

    bytes: Required[int]
    xxh3_128: str
    xxh3_blocks: str
    pieces: list[FileDigest]


class TrackDigest(FileDigest):
    """That of a track, with the name that numpy has of its dtype."""

    dtype: str


def check_size(path: str, size: int, digest: FileDigest) -> None:
    """FormatError where a file of so many bytes is not as large as the manifest says."""
    recorded = digest["bytes"]
    if size != recorded:
        raise FormatError(
            f"{path}: {size} bytes, expected {recorded}, as the manifest says: "
            f"{'cut off' if size < recorded else 'too long'}, or the files do not belong together"
        )


def checksum_of(digest: FileDigest) -> str:
    """The checksum that a digest has, 32 hexadecimal digits; "" where it has none.

    Where a file has pieces it is that of their sizes and checksums, a line each.
    """
    if "pieces" in digest:
        lines = "".join(f"{one['bytes']} {checksum_of(one)}\n" for one in digest["pieces"])
        return xxhash.xxh3_128_hexdigest(lines.encode())
    return digest.get("xxh3_blocks") or digest.get("xxh3_128", "")


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


def has_digest(path: str, digest: FileDigest) -> bool:
    """Whether a file has a size and its checksums. InputError where it cannot be read."""
    sums, size = PieceSums(digest), 0
    pieces: list[SummedPiece] = []
    for block in _blocks(path):
        pieces += sums.add(block)
        size += len(block)
    pieces += sums.finish()
    same = all(piece.checksum == checksum_of(piece.digest) for piece in pieces)
    return size == digest["bytes"] and same


def check_file_digest(path: str, checksum: str, digest: FileDigest) -> None:
    """FormatError where the bytes of a file do not have the checksum of its digest."""
    recorded = checksum_of(digest)
    if checksum != recorded:
        kind = "xxh3_blocks" if "xxh3_blocks" in digest else "xxh3_128"
        raise FormatError(
            f"{path}: {kind} is {checksum}, expected {recorded}, as the manifest says: bytes of it "
            "have changed, somewhere that no other check sees, or the files do not belong together"
        )


def check_piece(path: str, piece: SummedPiece) -> None:
    """FormatError where a piece of a .bin does not have the checksum of its digest."""
    where = "" if piece.is_all else f", bytes {piece.begin:,} to {piece.end:,}"
    check_file_digest(path + where, piece.checksum, piece.digest)


def digest_file(path: str | os.PathLike[str]) -> FileDigest:
    """Size and XXH3-128 (32 hexadecimal digits) of a file, read once, in constant memory."""
    state, size = xxhash.xxh3_128(), 0
    for block in _blocks(path):
        state.update(block)
        size += len(block)
    return {"bytes": size, "xxh3_128": state.hexdigest()}


def _blocks(path: str | os.PathLike[str]) -> Iterator[memoryview]:
    """The bytes of a file, each block valid until the next. InputError where it cannot be read."""
    buffer = memoryview(bytearray(_READ))
    with cannot_read(path), open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count]


class HashingReader:
    """Passes the chunks of a file on, and computes the digest of all that passed."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._state = xxhash.xxh3_128()
        self._bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._state.update(chunk)
            self._bytes += len(chunk)
            yield chunk

    @property
    def digest(self) -> FileDigest:
        """Size and checksum of the chunks that passed."""
        return {"bytes": self._bytes, "xxh3_128": self._state.hexdigest()}

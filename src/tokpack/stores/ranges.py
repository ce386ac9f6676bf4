"""Ranges of objects and of files, which new objects are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import InputError
from tokpack.files.durable import Identity, cannot_read, identity, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.stores.urls import StoredObject

    Chunks = Callable[[Sequence["Range"]], Iterator[bytes]]  # the bytes of ranges, in order

PART_BYTES = 16 << 20  # of an upload
_MOST_PARTS = 9000
_CHUNK = 4 << 20


def part_bytes(size: int) -> int:
    """How large the parts of an upload are: S3 allows 10,000, and so do others."""
    return max(PART_BYTES, -(-size // _MOST_PARTS))


class LocalFile(NamedTuple):
    """A file and its version."""

    path: str
    identity: Identity

    def check_same(self) -> None:
        """InputError where the path is another file's, or it has been written."""
        if identity(self.path) != self.identity:
            raise InputError(f"{self.path}: was replaced while it was read: run again")


class Range(NamedTuple):
    """Bytes [begin, end) of an object, or of a file."""

    source: StoredObject | LocalFile
    begin: int
    end: int

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end - self.begin


def file_chunks(path: str, begin: int, end: int) -> Iterator[bytes]:
    """Bytes [begin, end) of a file, some MiB at a time. InputError where it has them not."""
    with cannot_read(path), open_regular(path) as file:
        file.seek(begin)
        while begin < end:
            chunk = file.read(min(_CHUNK, end - begin))
            if not chunk:
                raise InputError(f"{path}: ends at byte {begin}: it was cut off meanwhile")
            begin += len(chunk)
            yield chunk

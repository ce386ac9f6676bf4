"""The members of tar and zip archives as streams, one after the other."""

from __future__ import annotations

import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from tokpack.errors import InputError
from tokpack.sources.base import printable
from tokpack.sources.peekable import READ_BYTES
from tokpack.sources.streams import FOREVER, DerivedStream, fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.sources.streams import RawStream, Stream

_BLOCK = 512  # of a tar
_LINK = "that are links"
_MOST_HEADER = 1 << 20  # bytes of a long name or of pax records, which tarfile holds in memory
_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_BROKEN = (  # all that tarfile and zipfile raise for bytes that they did not expect
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, RuntimeError, NotImplementedError, ValueError, IndexError, OverflowError),
)


@dataclass
class Member:
    """A file in an archive; its stream can be read until the next member is asked for."""

    name: str
    stream: RawStream
    stored: int  # compressed bytes in the archive, where the archive says so


def drain(stream: Stream, most: int = FOREVER) -> int:
    """Read up to ``most`` bytes, for their checksum or to get behind them; returns how many."""
    view = memoryview(bytearray(READ_BYTES))
    drained = 0
    while drained < most and (count := stream.readinto(view[: most - drained])):
        drained += count
    return drained


def tar_members(stream: Stream, name: str, passed_over: list[tuple[str, str]]) -> Iterator[Member]:
    """The files of a tar; InputError if it is cut off, or goes on with what is no tar.

    Symbolic links are added to ``passed_over``: why, and the name.
    """
    watched = _WatchedStream(stream)
    end = 0
    raw = cast("IO[bytes]", watched)
    with _reported(name), tarfile.open(fileobj=raw, mode="r|", tarinfo=_Header) as tar:
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all that it has seen
            if info.islnk():
                raise InputError(f"{name}/{printable(info.name)}: a hard link; repack the archive")
            if info.issparse():
                raise _sparse(info)
            if info.issym():
                passed_over.append((_LINK, printable(info.name)))
            if info.isfile() and not _is_hidden(info.name):
                file = tar.extractfile(info)
                if file is not None:
                    yield Member(info.name, _MemberStream(file, name), 0)
        end = tar.offset
    drain(watched)
    if watched.last_byte >= end:
        raise InputError(f"{name}: byte {end} of the tar begins no member, but is not the end")
    if watched.size < end + _BLOCK:
        raise InputError(f"{name}: the tar is cut off at byte {watched.size}, behind a member")


def zip_members(file: IO[bytes], name: str, passed_over: list[tuple[str, str]]) -> Iterator[Member]:
    """The files of a zip, in the order of its directory. ``passed_over`` as of a tar."""
    with _reported(name), zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if stat.S_ISLNK(info.external_attr >> 16):  # what it has is the name of another file
                passed_over.append((_LINK, printable(info.filename)))
            elif not info.is_dir() and not _is_hidden(info.filename):
                with archive.open(info) as member:
                    stream = _MemberStream(member, f"{name}/{printable(info.filename)}")
                    yield Member(info.filename, stream, info.compress_size)


class _Header(tarfile.TarInfo):
    """A header that does not let tarfile hold, or make, what a few bytes claim that there is."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse(self)
        if self.type in _HEADERS and self.size > _MOST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes, more than {_MOST_HEADER:,}")
        return super()._proc_member(tar)  # type: ignore[misc]

    def _proc_gnusparse_10(self, member: tarfile.TarInfo, *_: object) -> None:
        raise _sparse(member)


def _sparse(member: tarfile.TarInfo) -> tarfile.ReadError:
    # No text has holes, and a few bytes make one of any size.
    name = printable(member.name)
    return tarfile.ReadError(f"{name} is a sparse file; repack the archive without --sparse")


class _WatchedStream(DerivedStream):
    """Notes how far a stream was read, and where its last byte is that is not zero."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.size = 0
        self.last_byte = -1

    def readinto(self, view: memoryview) -> int:
        count = fill(self._stream, view)
        used = len(bytes(view[:count]).rstrip(b"\0"))
        if used:
            self.last_byte = self.size + used - 1
        self.size += count
        return count


class _MemberStream:
    """A member as tarfile or zipfile reads it; what they raise becomes InputError."""

    stored = 0

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name

    def read(self, size: int) -> bytes:
        with _reported(self._name):
            return self._file.read(size)

    def readinto(self, view: memoryview) -> int:
        chunk = self.read(len(view))
        view[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._file.close()


@contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise InputError(
            f"{name}: the archive is cut off, corrupt or not readable: {error}"
        ) from error


def _is_hidden(name: str) -> bool:
    """Whether a member is hidden, or one of the companions that macOS adds."""
    return os.path.basename(name).startswith(".") or name.startswith("__MACOSX/")

"""Streams of decompressed bytes: ``readinto`` fills a buffer, and data that is cut off is an
error.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import xxhash
import zstandard

from tokpack.errors import InputError
from tokpack.sources.base import STDIN
from tokpack.sources.compression import COMPRESSIONS, LAYER, Follower, decoder_errors
from tokpack.storage.disk import blocks
from tokpack.storage.disk.blocks import SUM_BYTES, BlockSums, checksum_of_sums

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.sources.base import Source


# The first bytes of standard input and named pipes are kept, up to REPLAY_BYTES, so that the format
# and the first records can be determined before everything is read from the start. A forked worker
# inherits the pipe with these bytes; a spawned one cannot read its parent's pipes.

REPLAY_BYTES = 8 << 20


class Pipe:
    """A pipe. ``kept`` are the bytes that were read from it so far, or None once they are too
    many.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.kept: bytearray | None = bytearray()
        self._lock = threading.Lock()

    def readinto(self, view: memoryview, at: int) -> int:
        """Read bytes from offset ``at`` on, which must be the end of the caller's last read."""
        with self._lock:
            if self.kept is not None and at < len(self.kept):
                count = min(len(view), len(self.kept) - at)
                view[:count] = self.kept[at : at + count]
                return count
            count = os.readv(self.descriptor, [view])
            if self.kept is not None:
                self.kept += view[:count]
                if len(self.kept) > REPLAY_BYTES:
                    self.kept = None
            return count


class PipeReader:
    """One pass over a pipe, from its start."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._at = 0

    def readinto(self, view: memoryview) -> int:
        count = self._pipe.readinto(view, self._at)
        self._at += count
        return count

    def read(self, size: int) -> bytes:
        buffer = bytearray(size)
        count = self.readinto(memoryview(buffer))
        return bytes(buffer[:count])

    def close(self) -> None:
        """Do nothing: the pipe may be read again from the bytes that are kept."""


_pipes: dict[str, Pipe] = {}
_opening = threading.Lock()


def open_pipe(path: str, name: str) -> PipeReader:
    """A reader of a pipe from its start. InputError if the start is not kept any more."""
    with _opening:
        if path not in _pipes:
            descriptor = os.dup(0) if path == STDIN else os.open(path, os.O_RDONLY)
            _pipes[path] = Pipe(descriptor)
        pipe = _pipes[path]
    if pipe.kept is None:
        raise InputError(f"{name}: a pipe can be read only once; save it to a file first")
    return PipeReader(pipe)


_CHUNK_BYTES = 256 << 10
_MAX_ZSTD_WINDOW = 1 << 31
_BY_DICTIONARY = "decompress it with zstd -d -D DICTIONARY FILE"
FOREVER = 1 << 62  # more bytes than any stream has


class Stream(Protocol):
    """Bytes to read in order. Reading raises InputError."""

    @property
    def stored(self) -> int:
        """The number of bytes of the file that were read so far."""

    def readinto(self, view: memoryview) -> int:
        """Fill some of the view. Returns the number of bytes, 0 at the end of the stream."""

    def close(self) -> None:
        """Close what was opened for the stream."""


class RawStream(Stream, Protocol):
    """A stream that decoders read from."""

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes, none at the end of the stream."""


@dataclass
class BoundedStream:
    """The first ``end`` bytes of a stream; ``end`` may be set while the stream is read.

    ``skips_first_line`` is False only if the stream begins at the beginning of a file.
    """

    end: int = FOREVER
    skips_first_line: bool = False


class FileStream:
    """Bytes [begin, end) of a file, or all of a pipe; with ``sums``, also checksums of whole
    blocks.

    ``until`` is the offset up to which it will probably be read, if not the end.
    """

    def __init__(
        self,
        source: Source,
        begin: int = 0,
        end: int | None = None,
        *,
        until: int | None = None,
        sums: bool = False,
    ) -> None:
        self.stored = 0
        self._begin = begin
        self._size = source.size
        self._sums = BlockSums(begin) if sums and not begin % blocks.BLOCK_BYTES else None
        self._name = source.name
        self._left = end - begin if end is not None else FOREVER
        try:
            if source.is_pipe:
                self._file: Any = open_pipe(source.path, source.name)
            else:
                self._file = source.open_at(begin, end if until is None else until)
        except OSError as error:
            raise InputError(f"{source.name}: {error.strerror}") from error

    def readinto(self, view: memoryview) -> int:
        try:
            count: int = self._file.readinto(view[: self._left])
        except OSError as error:
            raise self._failed(error) from error
        return self._took(view[:count])

    def read(self, size: int) -> bytes:
        try:
            chunk: bytes = self._file.read(min(size, self._left))
        except OSError as error:
            raise self._failed(error) from error
        self._took(memoryview(chunk))
        return chunk

    def block_checksums(self) -> str | None:
        """The checksums of the file's blocks, or None if not all of it was read."""
        if self._sums is None or self._sums.at != self._size:
            return None
        return self._sums.finish().hex()

    def block_checksums_through(self, byte: int) -> str | None:
        """The checksums of the blocks from ``begin`` up to the one with ``byte``.

        The rest of that block is read. None if the file has become shorter, or if ``begin`` is
        inside a block.
        """
        if self._sums is None:
            return None
        size = blocks.BLOCK_BYTES
        stop = min(self._size, byte - byte % size + size)
        rest = memoryview(bytearray(max(stop - self._sums.at, 0)))
        while rest:
            count = self.readinto(rest)
            if not count:
                return None
            rest = rest[count:]
        sums = self._sums.finish()
        return sums[: -(-(stop - self._begin) // size) * SUM_BYTES].hex()

    def close(self) -> None:
        self._file.close()

    def _took(self, data: memoryview) -> int:
        self.stored += len(data)
        self._left -= len(data)
        if self._sums is not None:
            self._sums.add(data)
        return len(data)

    def _failed(self, error: OSError) -> InputError:
        return InputError(f"{self._name}: {error.strerror} after {self.stored} bytes")


class DerivedStream(ABC):
    """A stream that is made from another one, and closes that."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def stored(self) -> int:
        return self._stream.stored

    @abstractmethod
    def readinto(self, view: memoryview) -> int:
        """Fill some of the view. Returns the number of bytes, 0 at the end of the stream."""

    def read(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(memoryview(buffer))])

    def close(self) -> None:
        self._stream.close()


class _Decompressed(DerivedStream):
    """The base of decompressing streams: the raw stream, and the errors."""

    def __init__(self, raw: RawStream, name: str, compression: str) -> None:
        super().__init__(raw)
        self._raw = raw
        self._name = name
        self._compression = compression
        self._given = 0

    def _truncated_error(self) -> InputError:
        return InputError(
            f"{self._name}: the {self._compression} stream is cut off after {self._given} "
            "decompressed bytes; the file is incomplete: fetch or make it again"
        )

    def _corrupt(self, error: Exception, advice: str = "fetch or make it again") -> InputError:
        return InputError(
            f"{self._name}: the {self._compression} stream is corrupt after {self._given} "
            f"decompressed bytes ({error}): {advice}"
        )


class ZstdStream(_Decompressed):
    """One or more zstd frames, with windows of up to 2 GiB; skippable frames are skipped."""

    def __init__(self, raw: RawStream, name: str) -> None:
        super().__init__(raw, name, "zst")
        self._followed = Follower(raw.read)
        decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
        self._reader = decoder.stream_reader(
            self._followed,  # type: ignore[arg-type]  # anything with read() will do
            read_size=_CHUNK_BYTES,
            read_across_frames=True,
            closefd=False,
        )

    def readinto(self, view: memoryview) -> int:
        try:
            count = self._reader.readinto(view)
        except zstandard.ZstdError as error:
            if "not enough memory" in str(error):
                raise MemoryError(f"{self._name}: {error}") from error
            if self._followed.needs:
                raise InputError(
                    f"{self._name}: {self._followed.needs}, which is needed to read it: "
                    f"{_BY_DICTIONARY}"
                ) from error
            raise self._corrupt(
                error, f"fetch or make it again, or if it needs a dictionary, {_BY_DICTIONARY}"
            ) from error
        if count == 0 and not self._followed.whole:
            raise self._truncated_error()
        self._given += count
        return count


class MembersStream(_Decompressed):
    """One or more members, each with its checksum compared."""

    def __init__(
        self,
        raw: RawStream,
        name: str,
        compression: str,
        decoder: Callable[[bytes], Any],
        *,
        padded: bool,
    ) -> None:
        super().__init__(raw, name, compression)
        self._new_decoder = decoder
        self._padded = padded
        self._decoder: Any = None
        self._pending = b""
        self._first = True

    def readinto(self, view: memoryview) -> int:
        while self._decoder is not None or self._next_member():
            count = self._decode(view)
            if count:
                self._given += count
                return count
        return 0

    def _next_member(self) -> bool:
        while True:
            if self._padded and not self._first:  # zero bytes after a member are padding
                self._pending = self._pending.lstrip(b"\0")
            if self._pending:
                break
            self._pending = self._raw.read(_CHUNK_BYTES)
            if not self._pending:
                return False
        self._first = False
        self._decoder = self._new_decoder(self._pending)
        return True

    def _decode(self, view: memoryview) -> int:
        """Decode up to len(view) bytes. Returns 0 if the member has ended."""
        while True:
            try:
                chunk = self._decoder.decompress(self._pending, len(view))
            except decoder_errors() as error:
                raise self._corrupt(error) from error
            self._pending = getattr(self._decoder, "unconsumed_tail", b"")
            if self._decoder.eof:
                self._pending = self._decoder.unused_data
                self._decoder = None
            if chunk or self._decoder is None:
                view[: len(chunk)] = chunk
                return len(chunk)
            if not self._pending:
                self._pending = self._raw.read(_CHUNK_BYTES)
                if not self._pending:
                    raise self._truncated_error()


def decompressed(raw: RawStream, compression: str, name: str) -> RawStream:
    """The stream itself, or the stream that decompresses it; ``name`` is that of the file."""
    for layer in compression.split(LAYER) if compression else ():
        entry = COMPRESSIONS[layer]
        if entry.decoder is None:
            raw = ZstdStream(raw, name)
        else:
            raw = MembersStream(raw, name, layer, entry.decoder, padded=entry.padded)
    return raw


def open_stream(
    source: Source, end: int | None = None, *, file: FileStream | None = None
) -> Stream:
    """The decompressed stream of a source, or of its first ``end`` stored bytes. InputError.

    ``file`` is the source, if it is open already.
    """
    raw = FileStream(source, 0, end) if file is None else file
    return decompressed(raw, source.compression, source.name)


class FramesStream:
    """Frames [begin, end) of a zstd file, and then the next ones, to finish the last line.

    Sets ``region.end`` to the decompressed size of [begin, end) once it is known.
    """

    def __init__(self, source: Source, begin: int, end: int, region: BoundedStream) -> None:
        self._source = source
        self._end = end
        self._region = region
        self._given = 0
        self._own = FileStream(source, begin, end)
        self._stream = ZstdStream(self._own, source.name)
        self._beyond = False

    @property
    def stored(self) -> int:
        return self._own.stored

    def readinto(self, view: memoryview) -> int:
        count = self._stream.readinto(view)
        if count == 0 and not self._beyond:
            self._beyond = True
            self._region.end = self._given
            self._stream.close()
            self._stream = ZstdStream(FileStream(self._source, self._end), self._source.name)
            count = self._stream.readinto(view)
        self._given += count
        return count

    def close(self) -> None:
        self._stream.close()


def fill(stream: Stream, view: memoryview) -> int:
    """Read until the view is full or the stream ends. Returns the number of bytes."""
    filled = 0
    while filled < len(view):
        count = stream.readinto(view[filled:])
        if count == 0:
            break
        filled += count
    return filled


# Block checksums show whether an input with a new modification time has the same content.

_DIGITS = 16  # hexadecimal digits for a block


def block_checksums(source: Source, begin: int, end: int, *, to_newline: bool = False) -> str:
    """xxh3_64, 16 hexadecimal digits, of each block of 1 MiB that has any of bytes [begin, end).

    Blocks begin at multiples of their size, whatever ``begin`` is. With ``to_newline`` also the
    blocks up to the first newline at or after ``end``: all that a part of lines depends on. Soon
    after the part was read, the bytes are still in the page cache. InputError if the file cannot be
    read.
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
    """The checksums of all blocks of a file of ``size`` bytes, or None if some are missing.

    ``runs`` are pairs of an offset and the checksums of blocks from there on, in order. They may
    overlap if two parts have read the same block. ValueError if they contradict each other: then
    the file has changed in between.
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

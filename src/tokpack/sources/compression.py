"""The compressions that are read. One entry here is all that a new one needs."""

from __future__ import annotations

import bz2
import functools
import lzma
import os
import re
import zlib
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence


MAGIC = b"\x28\xb5\x2f\xfd"
_RLE_BLOCK = 1
_RESERVED_BLOCK = 3


class DictionaryError(ValueError):
    """A frame was compressed with a dictionary that is not available."""


def is_skippable(magic: bytes) -> bool:
    """Whether these 4 bytes begin a frame that decoders skip."""
    return len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5


def _walk() -> Generator[tuple[int, int, bool], bytes, None]:
    """Walk over zstd frames by their headers alone (RFC 8878); nothing is decompressed.

    It yields (offset, length, whether a frame begins there) of each header, and must be sent the
    header's bytes. ValueError for anything but zstd.
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
    """Yield the end of each zstd frame of an open file, in order.

    It reads only headers, by calls, because a map of the file would count as memory. It stops
    early, without an error, if the file is damaged (the decoder will report that), or if no second
    frame begins before ``give_up_at``.
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
    """Passes compressed bytes to the zstd decoder, and notes whether they end at the end of a
    frame.

    The decoder does not distinguish a truncated frame from a whole one. ``read`` gives the next
    bytes.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._walk = _walk()
        self._at, self._length, self._frame_begins = next(self._walk)
        self._seen = 0
        self._header = b""
        self._lost = False
        self.needs = ""  # the missing dictionary, in words

    def read(self, size: int) -> bytes:
        """The next bytes of the stream, at most ``size``."""
        chunk = self._read(size)
        self._follow(chunk)
        return chunk

    def _follow(self, chunk: bytes) -> None:
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
                self._lost = True  # the decoder will report these bytes
                self.needs = str(error) if isinstance(error, DictionaryError) else ""

    @property
    def whole(self) -> bool:
        """Whether the bytes so far are whole frames."""
        return self._lost or (self._frame_begins and self._at == self._seen and not self._header)


_MAX_XZ_MEMORY = 1 << 31
_GZIP = b"\x1f\x8b\x08"
_GZIP_TEXT = 1  # the flag of a gzip member that it contains text
_GZIP_FIELDS = (0, 4, 8, 16)  # nothing, extra bytes, a name, a comment
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")  # with a first block, or without any
MOST_LAYERS = 3  # compressions around each other


@dataclass(frozen=True)
class Compression:
    """How a compression is recognized and read, and its cost.

    ``begins`` tests the first bytes of a stream. ``decoder`` is called with the first bytes of a
    member and returns an object that decodes the member, with ``decompress(data, most)``, ``eof``
    and ``unused_data`` as in bz2.BZ2Decompressor; None for zstd, which has a stream of its own.
    ``padded``: zero bytes may follow a member. ``expansion`` is bytes of text per stored byte.
    ``decoding`` is the time to decompress typical text relative to encoding it. The last two only
    affect how work is divided.
    """

    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool]
    expansion: float
    decoding: float
    decoder: Callable[[bytes], Any] | None = None
    padded: bool = False


def gzip_decoder(head: bytes) -> Any:
    """A decoder of the gzip member that begins with ``head``, with the methods of zlib's.

    ISA-L's takes a third of the time of zlib's.
    """
    # For bytes that are not a member, zlib says what is wrong, ISA-L only that they are cut off.
    # ISA-L also refuses some valid members: those whose header has several fields, or a checksum,
    # and spans two reads.
    has_flags = len(head) > len(_GZIP) and head.startswith(_GZIP)
    library = _isal() if has_flags and head[3] & ~_GZIP_TEXT in _GZIP_FIELDS else zlib
    return library.decompressobj(wbits=31)


def decoder_errors() -> tuple[type[Exception], ...]:
    """The errors that decoders raise for bytes that they cannot decode."""
    return lzma.LZMAError, OSError, ValueError, zlib.error, _isal().error


@functools.cache
def _isal() -> Any:
    """The module of ISA-L, or zlib if it is not installed."""
    try:
        from isal import isal_zlib  # loaded only if something is gzip
    except ImportError:
        return zlib
    return isal_zlib


_SINGLE = {
    "": Compression(suffixes=(), begins=lambda head: False, expansion=1.0, decoding=0.1),
    "zst": Compression(
        suffixes=(".zst", ".zstd"),
        begins=lambda head: head.startswith(MAGIC) or is_skippable(head[:4]),
        expansion=3.0,
        decoding=0.5,
    ),
    "gz": Compression(
        suffixes=(".gz",),
        begins=lambda head: head.startswith(_GZIP),
        expansion=3.0,
        decoding=0.8,
        decoder=gzip_decoder,
        padded=True,
    ),
    "xz": Compression(
        suffixes=(".xz",),
        begins=lambda head: head.startswith(b"\xfd7zXZ\0"),
        expansion=4.0,
        decoding=6.0,
        decoder=lambda head: lzma.LZMADecompressor(memlimit=_MAX_XZ_MEMORY),
        padded=True,
    ),
    "bz2": Compression(
        suffixes=(".bz2",),
        begins=lambda head: _BZIP2.match(head) is not None,
        expansion=4.0,
        decoding=15.0,
        decoder=lambda head: bz2.BZ2Decompressor(),
    ),
}
SUFFIXES = tuple(suffix for one in _SINGLE.values() for suffix in one.suffixes)


def _layered(names: Sequence[str]) -> Compression:
    """Nested compressions as one, with the time of all."""
    outer, *inner = (_SINGLE[name] for name in names)
    expansion, decoding = outer.expansion, outer.decoding
    for one in inner:
        expansion, decoding = expansion * one.expansion, decoding / one.expansion + one.decoding
    return Compression((), lambda head: False, expansion, decoding)


# Nested compressions have names joined by LAYER, the outermost first: gz+zst is zst inside gz.
LAYER = "+"
COMPRESSIONS = _SINGLE | {
    LAYER.join(names): _layered(names)
    for count in range(2, MOST_LAYERS + 1)
    for names in product(filter(None, _SINGLE), repeat=count)
}


def compression_of(head: bytes) -> str:
    """The name of the outermost compression of a stream that begins with ``head``, "" for none."""
    return next((name for name, one in _SINGLE.items() if one.begins(head)), "")


def bare_name(name: str) -> str:
    """The name of a file in lower case, without the suffix of its compression."""
    name = name.lower()
    return name[: name.rindex(".")] if name.endswith(SUFFIXES) else name

"""The compressions that are read. One entry here is all that a new one needs."""

from __future__ import annotations

import bz2
import functools
import lzma
import re
import zlib
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from tokpack.sources.zstd_frames import MAGIC as ZSTD_MAGIC
from tokpack.sources.zstd_frames import is_skippable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX_XZ_MEMORY = 1 << 31
_GZIP = b"\x1f\x8b\x08"
_GZIP_TEXT = 1  # of a gzip member's flags: what it holds is text
_GZIP_FIELDS = (0, 4, 8, 16)  # nothing, extra bytes, a name, a comment
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")  # with a first block, and without any
MOST_LAYERS = 3  # of compressions around a file


@dataclass(frozen=True)
class Compression:
    """How a compression is recognised and read, and what it costs.

    ``begins`` says whether a stream with these first bytes has it. ``decoder`` is given the first
    bytes of a member and makes an object that decodes that member, with ``decompress(data, most)``,
    ``eof`` and ``unused_data`` as bz2.BZ2Decompressor has them; None for zstd, which has a stream
    of its own. ``padded``: zero bytes may follow a member. ``expansion`` is bytes of text for each
    stored byte; ``decoding`` is the time to decompress a text where the time to encode it is 1, for
    typical text on one core. These two only decide how work is shared out.
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
    # zlib says what is wrong with bytes that begin no member; ISA-L calls them cut off. And ISA-L
    # refuses whole members whose header has several fields, or a checksum, cut by two reads.
    has_flags = len(head) > len(_GZIP) and head.startswith(_GZIP)
    library = _isal() if has_flags and head[3] & ~_GZIP_TEXT in _GZIP_FIELDS else zlib
    return library.decompressobj(wbits=31)


def decoder_errors() -> tuple[type[Exception], ...]:
    """What decoders raise for bytes that they cannot decode."""
    return lzma.LZMAError, OSError, ValueError, zlib.error, _isal().error


@functools.cache
def _isal() -> Any:
    """The module of ISA-L, or zlib where it could not be installed."""
    try:
        from isal import isal_zlib  # not loaded where nothing is gzip
    except ImportError:
        return zlib
    return isal_zlib


_SINGLE = {
    "": Compression(suffixes=(), begins=lambda head: False, expansion=1.0, decoding=0.1),
    "zst": Compression(
        suffixes=(".zst", ".zstd"),
        begins=lambda head: head.startswith(ZSTD_MAGIC) or is_skippable(head[:4]),
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
    """Several, one around the other: how long they take together."""
    outer, *inner = (_SINGLE[name] for name in names)
    expansion, decoding = outer.expansion, outer.decoding
    for one in inner:
        expansion, decoding = expansion * one.expansion, decoding / one.expansion + one.decoding
    return Compression((), lambda head: False, expansion, decoding)


# With the names of several joined by LAYER, the outermost first: gz+zst is zst inside of gz.
LAYER = "+"
COMPRESSIONS = _SINGLE | {
    LAYER.join(names): _layered(names)
    for count in range(2, MOST_LAYERS + 1)
    for names in product(filter(None, _SINGLE), repeat=count)
}


def compression_of(head: bytes) -> str:
    """The outermost compression of a stream that begins with ``head``, "" for none."""
    return next((name for name, one in _SINGLE.items() if one.begins(head)), "")


def bare_name(name: str) -> str:
    """A file's name in small letters, without the suffix of its compression."""
    name = name.lower()
    return name[: name.rindex(".")] if name.endswith(SUFFIXES) else name

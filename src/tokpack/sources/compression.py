"""The compressions that are read. One entry here is all that a new one needs."""

from __future__ import annotations

import bz2
import lzma
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.sources.gzip_members import gzip_decoder
from tokpack.sources.zstd_frames import MAGIC as ZSTD_MAGIC
from tokpack.sources.zstd_frames import is_skippable

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_XZ_MEMORY = 1 << 31


@dataclass(frozen=True)
class Compression:
    """How a compression is recognised and read, and what it costs.

    ``begins`` tells it by the first bytes of a stream. ``decoder`` makes a decoder of one member,
    whose first bytes it is told, with ``decompress(data, most)``, ``eof`` and ``unused_data`` as
    bz2.BZ2Decompressor has them; zstd has a stream of its own. ``padded``: zero bytes may follow a
    member. ``expansion`` is text bytes for a stored one, ``decoding`` what decoding costs where
    encoding the text costs 1, for typical text on one core; these two only steer how work is shared
    out.
    """

    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool]
    decoder: Callable[[bytes], Any] | None
    padded: bool
    expansion: float
    decoding: float


COMPRESSIONS = {
    "": Compression(
        suffixes=(),
        begins=lambda head: False,
        decoder=None,
        padded=False,
        expansion=1.0,
        decoding=0.1,
    ),
    "zst": Compression(
        suffixes=(".zst", ".zstd"),
        begins=lambda head: head.startswith(ZSTD_MAGIC) or is_skippable(head[:4]),
        decoder=None,
        padded=False,
        expansion=3.0,
        decoding=0.5,
    ),
    "gz": Compression(
        suffixes=(".gz",),
        begins=lambda head: head.startswith(b"\x1f\x8b\x08"),
        decoder=gzip_decoder,
        padded=True,
        expansion=3.0,
        decoding=0.8,
    ),
    "xz": Compression(
        suffixes=(".xz",),
        begins=lambda head: head.startswith(b"\xfd7zXZ\0"),
        decoder=lambda head: lzma.LZMADecompressor(memlimit=_MAX_XZ_MEMORY),
        padded=True,
        expansion=4.0,
        decoding=6.0,
    ),
    "bz2": Compression(
        suffixes=(".bz2",),
        begins=lambda head: head.startswith(b"BZh") and head[3:4].isdigit(),
        decoder=lambda head: bz2.BZ2Decompressor(),
        padded=False,
        expansion=4.0,
        decoding=15.0,
    ),
}
SUFFIXES = tuple(suffix for known in COMPRESSIONS.values() for suffix in known.suffixes)


def compression_of(head: bytes) -> str:
    """The compression of a stream that begins with ``head``, "" for none."""
    return next((name for name, known in COMPRESSIONS.items() if known.begins(head)), "")


def bare_name(name: str) -> str:
    """A file's name in small letters, without the suffix of its compression."""
    name = name.lower()
    return name[: name.rindex(".")] if name.endswith(SUFFIXES) else name

"""Decoders of the members of gzip files: ISA-L's takes a third of the time of zlib's."""

from __future__ import annotations

import functools
import zlib
from typing import Any

_BEGIN = b"\x1f\x8b\x08"
_TEXT = 1  # of a member's flags: what it holds is text
_FIELDS = (0, 4, 8, 16)  # nothing, extra bytes, a name, a comment


def gzip_decoder(head: bytes) -> Any:
    """A decoder of one member, which begins with ``head``, with the methods of zlib's."""
    # zlib says what is wrong with bytes that begin no member; ISA-L calls them cut off. And ISA-L
    # refuses whole members whose header has several fields, or a checksum, cut by two reads.
    fits = len(head) > len(_BEGIN) and head.startswith(_BEGIN) and head[3] & ~_TEXT in _FIELDS
    library = _isal() if fits else zlib
    return library.decompressobj(wbits=31)


def gzip_errors() -> tuple[type[Exception], ...]:
    """What the decoders raise."""
    return zlib.error, _isal().error


@functools.cache
def _isal() -> Any:
    """ISA-L, or zlib where it could not be installed."""
    try:
        from isal import isal_zlib  # not loaded where nothing is gzip
    except ImportError:
        return zlib
    return isal_zlib

"""Decoders of the members of gzip files: ISA-L's takes a third of the time of zlib's."""

from __future__ import annotations

import functools
import zlib
from typing import Any

_BEGIN = b"\x1f\x8b\x08"
_RESERVED_FLAGS = 0xE0


def gzip_decoder(head: bytes) -> Any:
    """A decoder of one member, which begins with ``head``, with the methods of zlib's."""
    # Of what begins no member zlib knows why; ISA-L takes what is shorter for one that is cut off.
    fits = len(head) > len(_BEGIN) and head.startswith(_BEGIN) and not head[3] & _RESERVED_FLAGS
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

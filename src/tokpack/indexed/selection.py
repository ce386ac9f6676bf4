"""The file PREFIX.selection: the numbers of the documents of a view, in order."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError
from tokpack.indexed.digests import check_size
from tokpack.indexed.mapped import map_file
from tokpack.stores import head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.indexed.digests import FileDigest

Numbers = npt.NDArray[np.unsignedinteger[Any]]

MAGIC = b"TOKPSEL\0"
VERSION = 1
_HEADER = struct.Struct("<8sII")  # magic, version, bytes of a number
HEADER_BYTES = _HEADER.size
_STEP = 1 << 20
_ADVICE = "a view is a manifest with its selection: copy both, or select again"


def selection_path(prefix: str) -> str:
    """Where the numbers of the documents of the view ``prefix`` lie."""
    return prefix + ".selection"


def is_selection(path: str) -> bool:
    """Whether a file begins like a selection; False also where there is none that can be read."""
    return head(path, len(MAGIC)) == MAGIC


def selection_dtype(documents: int) -> np.dtype[Any]:
    """What the numbers of so many documents are stored as."""
    return np.dtype("<u4") if documents <= 1 << 32 else np.dtype("<u8")


def selection_chunks(numbers: npt.NDArray[Any], documents: int) -> Iterator[bytes]:
    """The bytes of a selection; ``numbers`` are integers [n], each below ``documents``."""
    dtype = selection_dtype(documents)
    yield _HEADER.pack(MAGIC, VERSION, dtype.itemsize)
    for begin in range(0, len(numbers), _STEP):
        yield numbers[begin : begin + _STEP].astype(dtype).tobytes()


def are_pairs(numbers: npt.NDArray[np.integer[Any]]) -> bool:
    """Whether numbers, integers [n], are those of pairs: 2i and 2i + 1, one after the other."""
    first, second = numbers[::2], numbers[1::2]
    if len(first) != len(second):
        return False
    return not (first & 1).any() and bool((first + 1 == second).all())


def map_selection(prefix: str, digest: FileDigest, documents: int) -> tuple[bytes, Numbers]:
    """The header and the numbers of a selection, mapped: unsigned integers [documents].

    FormatError where the file has not the size that the manifest says, or another header;
    InputError where it is missing. The numbers themselves are not looked at.
    """
    path = selection_path(prefix)
    buffer, _ = map_file(path, advice=_ADVICE)
    size = len(buffer)
    check_size(path, size, digest)
    header = bytes(buffer[:HEADER_BYTES])
    magic, version, width = _HEADER.unpack(header.ljust(HEADER_BYTES, b"\0"))
    if magic != MAGIC:
        raise FormatError(f"{path}: magic is {magic!r}, expected {MAGIC!r}: not a selection")
    if version != VERSION:
        raise FormatError(
            f"{path}: version is {version}, this tokpack knows {VERSION}: upgrade tokpack"
        )
    if width not in (4, 8) or size != HEADER_BYTES + width * documents:
        raise FormatError(
            f"{path}: {size} bytes with {width} for a number, expected {documents} numbers of "
            "4 or 8 bytes, as the manifest says: the files do not belong together"
        )
    dtype = np.dtype("<u4") if width == 4 else np.dtype("<u8")
    return header, np.frombuffer(buffer, dtype, documents, HEADER_BYTES)

"""The bytes of a cache file.

0     8 bytes   magic
8     uint32    version
12    uint32    0
16    uint64    where the header begins; it ends the file
24    uint64    its bytes
32    16 bytes  XXH3-128 of the header
48    16 bytes  0
64    arrays, one after the other, each at a multiple of 64, little-endian, in C order
...   header: canonical JSON of kind, settings, and of each array name, dtype, shape, offset
      and XXH3-128
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import xxhash

from tokpack.files.foreign import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

VERSION = 1
ALIGNMENT = 64

_MAGIC = b"TOKINDEX"
_PREAMBLE = struct.Struct("<8sIIQQ16s16x")
_BLOCK = 1 << 20
_MAX_HEADER = 1 << 26
_KINDS = "biuf"


class CacheError(Exception):
    """A file does not hold the arrays that its name says; the message says why."""


@dataclass(frozen=True)
class ChunkedArray:
    """One array that is made in parts: ``chunks`` are its rows, in order, and are read once."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: Iterable[npt.NDArray[Any]]

    @classmethod
    def of(cls, name: str, array: npt.NDArray[Any]) -> ChunkedArray:
        """An array that is in memory already."""
        return cls(name, array.dtype, array.shape, (array,))

    def array(self) -> npt.NDArray[Any]:
        """The whole array, in memory; a single chunk that is the whole is not copied."""
        chunks = iter(self.chunks)
        first = next(chunks, None)
        if first is not None and first.shape == self.shape:
            return first
        whole = np.empty(self.shape, self.dtype)
        filled = 0
        while first is not None:
            whole[filled : filled + len(first)] = first
            filled += len(first)
            first = next(chunks, None)
        return whole


@dataclass(frozen=True)
class ArrayEntry:
    """One array of a file."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    checksum: str

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """Where it ends in the file."""
        return self.offset + self.count * self.dtype.itemsize


@dataclass(frozen=True)
class CacheHeader:
    """What a file holds; ``size`` is that of the file."""

    arrays: tuple[ArrayEntry, ...]
    size: int


def key(kind: str, settings: Mapping[str, Any]) -> str:
    """32 hexadecimal digits of everything that decides the arrays."""
    return xxhash.xxh3_128_hexdigest(_canonical([kind, VERSION, settings]))


def write(
    file: BinaryIO, kind: str, settings: Mapping[str, Any], parts: Iterable[ChunkedArray]
) -> None:
    """Write a whole file. The preamble comes last: without it a file is never taken for a cache."""
    position = _PREAMBLE.size
    file.seek(position)
    arrays = []
    for part in parts:
        position = -(-position // ALIGNMENT) * ALIGNMENT
        file.seek(position)
        dtype = part.dtype.newbyteorder("<")
        state = xxhash.xxh3_128()
        offset = position
        for chunk in part.chunks:
            data = np.ascontiguousarray(chunk, dtype).reshape(-1).view(np.uint8).data
            state.update(data)
            _write_all(file, data)
            position += len(data)
        arrays.append(ArrayEntry(part.name, dtype, part.shape, offset, state.hexdigest()))
        if arrays[-1].end != position:
            raise ValueError(f"{part.name}: its chunks are not of the shape {part.shape}")
    header = _canonical({"kind": kind, "settings": settings, "arrays": [*map(_describe, arrays)]})
    _write_all(file, memoryview(header))
    digest = xxhash.xxh3_128_digest(header)
    file.seek(0)
    _write_all(file, memoryview(_PREAMBLE.pack(_MAGIC, VERSION, 0, position, len(header), digest)))


def read(file: BinaryIO, kind: str, settings: Mapping[str, Any]) -> CacheHeader:
    """The header, checked against the file's size, ``kind`` and ``settings``. Raises CacheError."""
    size = os.fstat(file.fileno()).st_size
    preamble = file.read(_PREAMBLE.size)
    if len(preamble) < _PREAMBLE.size:
        raise CacheError(f"{size} bytes are too few for a cache of tokpack")
    magic, version, _, begin, length, digest = _PREAMBLE.unpack(preamble)
    if magic != _MAGIC:
        raise CacheError("not a cache of tokpack")
    if version != VERSION:
        raise CacheError(f"a cache of version {version}, this tokpack writes {VERSION}")
    if length > _MAX_HEADER or begin + length != size:
        raise CacheError(f"it has {size} bytes, expected {begin + length}")
    file.seek(begin)
    text = file.read(length)
    if xxhash.xxh3_128_digest(text) != digest:
        raise CacheError("the checksum of its header is wrong")
    try:
        values = parse_json(text, "its header")
        own = _canonical([values["kind"], values["settings"]])
        arrays = tuple(_stored(entry) for entry in values["arrays"])
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise CacheError(f"its header is not one of a cache: {error}") from None
    if own != _canonical([kind, settings]):
        raise CacheError("it is of other settings than its name says")
    if any(not _PREAMBLE.size <= stored.offset <= stored.end <= begin for stored in arrays):
        raise CacheError("an array in it leaves the file")
    return CacheHeader(arrays, size)


def verify(file: BinaryIO, header: CacheHeader) -> None:
    """Raises CacheError where an array's checksum is wrong. Takes no memory: nothing is mapped."""
    block = memoryview(bytearray(_BLOCK))
    for stored in header.arrays:
        state = xxhash.xxh3_128()
        file.seek(stored.offset)
        missing = stored.end - stored.offset
        while missing:
            count = file.readinto(block[: min(_BLOCK, missing)])  # type: ignore[attr-defined]
            if not count:
                raise CacheError("it became shorter while it was read")
            state.update(block[:count])
            missing -= count
        if state.hexdigest() != stored.checksum:
            raise CacheError(f"the checksum of {stored.name} is wrong")


def _describe(stored: ArrayEntry) -> dict[str, Any]:
    return {
        "name": stored.name,
        "dtype": stored.dtype.str,
        "shape": stored.shape,
        "offset": stored.offset,
        "xxh3_128": stored.checksum,
    }


def _stored(entry: Mapping[str, Any]) -> ArrayEntry:
    dtype = np.dtype(entry["dtype"])
    if dtype.kind not in _KINDS:
        raise CacheError(f"{entry['name']}: its dtype is {dtype}")
    shape = tuple(int(size) for size in entry["shape"])
    if any(size < 0 for size in shape):
        raise CacheError(f"{entry['name']}: its shape is {shape}")
    return ArrayEntry(entry["name"], dtype, shape, int(entry["offset"]), entry["xxh3_128"])


def _canonical(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def _write_all(file: BinaryIO, data: memoryview) -> None:
    while len(data):
        data = data[file.write(data) :]

"""The TNTIDX index of the ``lazy`` and ``cached`` datasets of Megatron's family and of fairseq.

Little endian: magic ``TNTIDX\\0\\0``, then u64 version = 1, dtype code, bytes of an id, N items, s
sizes and, in Megatron's family only, D document entries; then int64 arrays: dim_offsets [N + 1],
data_offsets [N + 1] (in ids, not bytes), sizes [s], doc_idx [D]. Items of one dimension are
sequences: then N = s and dim_offsets is 0, 1, 2, ... The .bin is as in the ``mmap`` format, but
fairseq adds 1 to each id.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError
from tokpack.indexed.format import CODES, MAX_LENGTH, dtype_of_code, first_descent

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"TNTIDX\0\0"
VERSION = 1
HEADER_BYTES = 56

_HEADER = struct.Struct("<8sQQQQQQ")
_FAIRSEQ = struct.Struct("<8sQQQQQ")  # the same without documents
_ENTRY = np.dtype("<i8")
_CHUNK = 1 << 18


class LazyIndex(NamedTuple):
    """A checked index: sizes int64 [S], doc_idx int64 [D] or None where fairseq wrote it."""

    dtype: np.dtype[Any]
    sizes: npt.NDArray[np.int64]
    doc_idx: npt.NDArray[np.int64] | None


def read_lazy_index(buffer: npt.NDArray[np.uint8], bin_bytes: int, name: str) -> LazyIndex:
    """Read and check every entry of the index ``name``, whose .bin has ``bin_bytes``."""
    size = len(buffer)
    if size < _FAIRSEQ.size:
        raise FormatError(f"{name}: the header is cut off: {size} bytes, expected {HEADER_BYTES}")
    _, version, code, itemsize, items, dims = _FAIRSEQ.unpack(buffer[: _FAIRSEQ.size].tobytes())
    if version != VERSION:
        raise FormatError(f"{name}: version is {version}, expected {VERSION}")
    dtype = dtype_of_code(code, name)
    if itemsize != dtype.itemsize:
        raise FormatError(f"{name}: element size is {itemsize}, expected {dtype.itemsize}, {dtype}")
    if items != dims:
        raise FormatError(
            f"{name}: {items} items have {dims} dimensions, expected one each: these are no "
            "sequences of token ids"
        )
    entries = 0
    begin = _FAIRSEQ.size
    fairseq = size == begin + 8 * (2 * (items + 1) + dims)
    if not fairseq:
        if size < HEADER_BYTES:
            raise FormatError(f"{name}: the header is cut off: {size} bytes, expected 56")
        entries = int.from_bytes(buffer[begin:HEADER_BYTES].tobytes(), "little")
        begin = HEADER_BYTES
    expected = begin + 8 * (2 * (items + 1) + dims + entries)
    if size != expected:
        raise FormatError(
            f"{name}: file size is {size} bytes, expected {expected} for {items} items and "
            f"{entries} document entries: cut off, too long, or the header is wrong"
        )
    values = buffer[begin:].view(_ENTRY)
    dim_offsets, data_offsets = values[: items + 1], values[items + 1 : 2 * items + 2]
    sizes, doc_idx = values[2 * items + 2 : 3 * items + 2], values[3 * items + 2 :]
    _check_items(dim_offsets, data_offsets, sizes, name)
    end = int(data_offsets[-1]) * dtype.itemsize
    if end != bin_bytes:
        raise FormatError(
            f"{name}: the items end at byte {end}, expected {bin_bytes}, the size of the .bin: "
            "the files do not belong together, or one is cut off"
        )
    if fairseq:
        return LazyIndex(dtype, sizes, None)
    _check_documents(doc_idx, items, name)
    return LazyIndex(dtype, sizes, doc_idx)


def _check_items(
    dim_offsets: npt.NDArray[np.int64],
    data_offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    name: str,
) -> None:
    if data_offsets[0] or dim_offsets[0]:
        raise FormatError(
            f"{name}: offsets begin at {dim_offsets[0]} and {data_offsets[0]}, expected 0"
        )
    end = 0
    for start in range(0, len(sizes), _CHUNK):
        chunk = sizes[start : start + _CHUNK]
        following = slice(start + 1, start + 1 + len(chunk))
        _same(dim_offsets[following], np.arange(start + 1, start + 1 + len(chunk)), name, start)
        wrong = np.flatnonzero((chunk < 0) | (chunk > MAX_LENGTH))
        if wrong.size:
            raise FormatError(
                f"{name}: item {start + wrong[0]} has size {chunk[wrong[0]]}, "
                f"expected 0 to {MAX_LENGTH}"
            )
        ends = np.cumsum(chunk) + end
        _same(data_offsets[following], ends, name, start)
        end = int(ends[-1])
        if end > np.iinfo(np.int64).max // 2:
            raise FormatError(f"{name}: item {start + len(chunk) - 1} ends at id {end}")


def _same(
    found: npt.NDArray[np.int64], expected: npt.NDArray[np.int64], name: str, start: int
) -> None:
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        first = int(wrong[0])
        raise FormatError(
            f"{name}: the end of item {start + first} is {found[first]}, expected {expected[first]}"
        )


def _check_documents(doc_idx: npt.NDArray[np.int64], items: int, name: str) -> None:
    if not len(doc_idx) or doc_idx[0] != 0 or doc_idx[-1] != items:
        ends = [int(entry) for entry in (*doc_idx[:1], *doc_idx[-1:])]
        raise FormatError(
            f"{name}: document entries must go from 0 to {items}, the ends are {ends}"
        )
    number = first_descent(doc_idx)
    if number is not None:
        raise FormatError(
            f"{name}: document entry {number} is {doc_idx[number]}, "
            f"expected {doc_idx[number - 1]} or more"
        )


def lazy_index_chunks(
    dtype: np.dtype[Any], lengths: npt.NDArray[Any], doc_idx: npt.NDArray[Any]
) -> Iterator[bytes]:
    """The bytes of the index file as Megatron's family writes it, a few MiB at a time."""
    count = len(lengths)
    code = CODES[dtype]
    yield _HEADER.pack(MAGIC, VERSION, code, dtype.itemsize, count, count, len(doc_idx))
    for start in range(0, count + 1, _CHUNK):
        yield np.arange(start, min(start + _CHUNK, count + 1), dtype=_ENTRY).tobytes()
    yield bytes(8)
    end = 0
    for start in range(0, count, _CHUNK):
        ends = np.cumsum(lengths[start : start + _CHUNK], dtype=_ENTRY) + end
        yield ends.astype(_ENTRY).tobytes()
        end = int(ends[-1])
    for array in (lengths, doc_idx):
        for start in range(0, len(array), _CHUNK):
            yield array[start : start + _CHUNK].astype(_ENTRY).tobytes()

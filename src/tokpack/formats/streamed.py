"""Token ids in shards of streaming libraries: a folder with an index.json that lists them.

MosaicML's MDS: a shard has columns, of which one holds the ids. litdata, for its TokensLoader: a
chunk has the ids of its items and nothing else. Both begin with the number of samples and the
offset of each, all uint32. A sample is a document, unless documents are cut at an EOD: both
libraries are often given blocks of one length that were cut from many documents.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence  # noqa: TC003 - decode asks for them
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.errors import FormatError, InputError, UsageError, option
from tokpack.formats.foreign import ForeignDataset, cut_at_eod, map_file, short_enough, size_of
from tokpack.formats.lists import MASKS, NAMES
from tokpack.sources import Source, fill, open_stream
from tokpack.storage.disk import decode, read_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INDEX = "index.json"
_LOST = ("labels", "loss_mask", "attention_mask", *MASKS)  # columns that say what is trained
_STEP = 1 << 20  # bytes that are decompressed at once
_Part = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # lengths of documents [d], and their ids


@dataclass(frozen=True)
class _File:
    basename: str
    bytes: int
    hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Shard:
    """An entry of MDS's index. A column has a size where all of its values have it."""

    column_names: Sequence[str]
    column_encodings: Sequence[str]
    column_sizes: Sequence[Any]
    format: str
    version: int
    samples: int
    raw_data: _File
    zip_data: _File | None = None
    compression: str = ""


@dataclass(frozen=True)
class _Mds:
    shards: Sequence[_Shard]


@dataclass(frozen=True)
class _Chunk:
    """An entry of litdata's index: ``chunk_size`` items of ``dim`` ids together."""

    chunk_bytes: int
    chunk_size: int
    filename: str
    dim: int = -1


@dataclass(frozen=True)
class _Config:
    data_format: Sequence[str] = ()
    compression: str = ""
    compression_level: str = "chunk"
    encryption: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Litdata:
    chunks: Sequence[_Chunk]
    config: _Config


def streamed_format(folder: str) -> str:
    """Whether a folder is "mds", "litdata", or "" for neither. InputError, FormatError."""
    path = os.path.join(folder, INDEX)
    if not os.path.exists(path):
        return ""
    keys = {"shards": "mds", "chunks": "litdata"}
    return next((form for key, form in keys.items() if key in read_object(path)), "")


def open_mds(
    folder: str, column: str | None, input_dtype: str | None, eod: int | None
) -> ForeignDataset:
    """A folder of MDS; ``input_dtype`` is that of ids in a column of bytes."""
    path = os.path.join(folder, INDEX)
    shards = decode(_Mds, read_object(path), path).shards
    for shard in shards:
        if (shard.format, shard.version) != ("mds", 2):
            raise FormatError(
                f"{path}: a shard has the format {shard.format!r}, version {shard.version}, "
                "expected mds, version 2; `tokpack encode` reads JSON and CSV"
            )
    found = [_IdColumn.of(path, shard, column, input_dtype) for shard in shards]
    parts = [
        partial(_read_mds, folder, shard, ids) for shard, ids in zip(shards, found, strict=True)
    ]
    return _opened(folder, parts, sum(shard.samples for shard in shards), eod)


def open_litdata(folder: str, eod: int | None) -> ForeignDataset:
    """A folder that litdata wrote for its TokensLoader."""
    path = os.path.join(folder, INDEX)
    index = decode(_Litdata, read_object(path), path)
    config = index.config
    dtype = _LITDATA_DTYPES.get(config.data_format[0]) if len(config.data_format) == 1 else None
    if dtype is None or any(chunk.dim < 0 for chunk in index.chunks):
        raise UsageError(
            f"{path}: holds {', '.join(config.data_format) or 'nothing'}, and not one run of ids "
            "in each chunk, as litdata's `optimize(..., item_loader=TokensLoader())` writes them"
        )
    if config.encryption or config.compression_level != "chunk":
        raise UsageError(
            f"{path}: is encrypted, or compressed inside of its chunks, which is not read: write "
            "it again without"
        )
    parts = [
        partial(_read_litdata, folder, chunk, config.compression, np.dtype(dtype))
        for chunk in index.chunks
    ]
    return _opened(folder, parts, sum(chunk.chunk_size for chunk in index.chunks), eod)


# Their numbers of the types of ids: litdata's, and those that MDS writes in a value.
_TORCH = {11: "u1", 12: "i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8"}
_NUMPY = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8")
_LITDATA_DTYPES = {f"no_header_tensor:{n}": dtype for n, dtype in {**_TORCH, 20: "<u2"}.items()}
_LITDATA_DTYPES |= {f"no_header_numpy:{n}": dtype for n, dtype in enumerate(_NUMPY)}
_MDS_DTYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 32: "uint32", 33: "int32"}
_MDS_DTYPES |= {64: "uint64", 65: "int64"}


def _opened(
    folder: str, parts: Sequence[Callable[[], _Part]], samples: int, eod: int | None
) -> ForeignDataset:
    """The documents of some files: samples, or what ``eod`` ends."""
    first = next((part for read in parts if len((part := read())[0])), None)
    if first is None:
        raise InputError(f"{os.path.join(folder, INDEX)}: lists no sample")
    lengths, dtype = first[0], first[1].dtype

    def both() -> Iterator[_Part]:
        number = 0
        for read in parts:
            sizes, ids = read()
            if len(sizes) and ids.dtype != dtype:
                raise FormatError(f"{folder}: has ids of {dtype} and of {ids.dtype}")
            yield short_enough(sizes, number, folder), ids
            number += len(sizes)

    def ids() -> Iterator[npt.NDArray[Any]]:
        return (ids for _, ids in both())

    if eod is not None:
        return cut_at_eod(folder, dtype, ids, eod)
    notes = []
    if len(lengths) > 1 and lengths.min() == lengths.max():
        notes = [
            f"each sample is a document, and the first {len(lengths)} all have {lengths[0]} ids: "
            f"if they are blocks of documents that were joined, {option('eod')} cuts where a "
            "document ends"
        ]
    return ForeignDataset(
        folder,
        dtype,
        samples,
        lambda: (sizes for sizes, _ in both()),
        ids,
        notes=tuple(notes),
        both=both,
    )


@dataclass(frozen=True)
class _IdColumn:
    """Which column has the ids, and how: ``dtype`` None if each value says its own."""

    number: int
    dtype: np.dtype[Any] | None
    has_shape: bool  # in each value

    @classmethod
    def of(cls, path: str, shard: _Shard, column: str | None, input_dtype: str | None) -> _IdColumn:
        """UsageError for a shard without such a column, FormatError for a wrong one."""
        names, encodings = shard.column_names, shard.column_encodings
        if not len(names) == len(encodings) == len(shard.column_sizes):
            raise FormatError(f"{path}: a shard has columns without a name, encoding or size")
        named = [column] if column is not None else NAMES
        name = next((name for name in named if name in names), None)
        if name is None:
            raise UsageError(
                f"{path}: has no column {' or '.join(named)}, only {', '.join(names)}: name the "
                f"one with the ids by {option('column')}"
            )
        lost = [one for one in names if one in _LOST]
        if lost and column is None:
            raise UsageError(
                f"{path}: has {', '.join(lost)} beside {name}, which are not read here, so that "
                f"all tokens would be trained: if they are to be, say {option('column', name)}"
            )
        encoding = encodings[names.index(name)]
        kind, _, rest = encoding.partition(":")
        stored, _, shape = rest.partition(":")
        if kind == "bytes" and input_dtype is None:
            raise UsageError(
                f"{path}: {name} is bytes, which do not tell the type of the ids: add "
                f"{option('input_dtype', 'int64')}, as LLM Foundry wrote them, or whatever it was"
            )
        if kind == "bytes":
            stored, has_shape = str(input_dtype), False
        else:
            has_shape = not shape
        is_array = kind == "ndarray" and (not stored or stored in _MDS_DTYPES.values())
        if not (is_array or kind == "bytes") or (shape and not shape.isdecimal()):
            raise UsageError(
                f"{path}: {name} is {encoding}, expected integers in one dimension: ndarray, "
                "ndarray:int32, ndarray:uint16:2048 or bytes"
            )
        dtype = np.dtype(stored).newbyteorder("<") if stored else None
        return cls(names.index(name), dtype, has_shape)

    def ids(self, value: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The ids in a value. ValueError for a broken one."""
        dtype, at = self.dtype, 0
        if dtype is None:
            dtype, at = np.dtype(_MDS_DTYPES.get(int(value[0]), "V")).newbyteorder("<"), 1
            if dtype.kind not in "iu":
                raise ValueError(f"the type {value[0]}, expected integers")
        if self.has_shape:
            dimensions, width = divmod(int(value[at]), 4)
            count = int.from_bytes(value[at + 1 : at + 1 + (1 << width)].tobytes(), "little")
            at += 1 + (1 << width)
            if dimensions != 1:
                raise ValueError(f"{dimensions} dimensions, expected 1")
            if len(value) - at != count * dtype.itemsize:
                raise ValueError(f"{len(value) - at} bytes for {count} ids of {dtype}")
        return np.frombuffer(value[at:].tobytes(), dtype)


def _read_mds(folder: str, shard: _Shard, column: _IdColumn) -> _Part:
    path, data = _content(folder, shard.raw_data, shard.zip_data, shard.compression)
    offsets = _offsets(path, data, shard.samples)
    sizes = [int(size or 0) for size in shard.column_sizes]
    varying = [number for number, size in enumerate(sizes) if not size]
    head, documents = 4 * len(varying), list[npt.NDArray[Any]]()
    for number, (begin, end) in enumerate(pairwise(offsets.tolist())):
        sample = data[begin:end]
        try:
            for one, size in zip(varying, sample[:head].view("<u4").tolist(), strict=True):
                sizes[one] = size
            if head + sum(sizes) != len(sample):
                raise ValueError(f"{len(sample)} bytes, {head + sum(sizes)} of its columns")
            at = head + sum(sizes[: column.number])
            documents.append(column.ids(sample[at : at + sizes[column.number]]))
            if documents[-1].dtype != documents[0].dtype:
                raise ValueError(f"ids of {documents[-1].dtype}, others {documents[0].dtype}")
        except (ValueError, IndexError) as error:
            raise FormatError(f"{path}: sample {number} is broken: {error}") from None
    lengths = np.array([len(one) for one in documents], np.int64)
    return lengths, np.concatenate(documents) if documents else np.zeros(0, np.uint8)


def _read_litdata(folder: str, chunk: _Chunk, compression: str, dtype: np.dtype[Any]) -> _Part:
    packed = _File(chunk.filename, chunk.chunk_bytes)
    if compression:
        path, data = _decompressed(folder, packed, chunk.chunk_bytes, compression)
    else:
        path, data = _content(folder, packed)
    offsets = _offsets(path, data, chunk.chunk_size)
    total = int(offsets[-1] - offsets[0])
    if (np.diff(offsets) % dtype.itemsize).any():
        raise FormatError(f"{path}: an item is not a whole number of ids of {dtype}")
    if chunk.dim != total // dtype.itemsize:
        raise FormatError(
            f"{path}: {total // dtype.itemsize} ids of {dtype}, {chunk.dim} in {INDEX}"
        )
    ids = np.frombuffer(data[offsets[0] :].tobytes(), dtype)
    return np.diff(offsets) // dtype.itemsize, ids


def _offsets(path: str, data: npt.NDArray[np.uint8], samples: int) -> npt.NDArray[np.int64]:
    """Where each sample begins, and the last one ends, in bytes. FormatError."""
    head = 4 * (samples + 2)
    if len(data) < head:
        raise FormatError(f"{path}: {len(data)} bytes cannot have the offsets of {samples} samples")
    count, *_ = numbers = np.frombuffer(data[:head].tobytes(), "<u4").astype(np.int64)
    offsets = numbers[1:]
    if count != samples:
        raise FormatError(f"{path}: says it has {count} samples, {INDEX} {samples}")
    if offsets[0] < head or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
        raise FormatError(f"{path}: the offsets of its samples are not in order, or leave the file")
    return offsets


def _content(
    folder: str, raw: _File, packed: _File | None = None, compression: str = ""
) -> tuple[str, npt.NDArray[np.uint8]]:
    """The path and the bytes of a file, or of its compressed form if only that is there."""
    if packed is not None and not os.path.exists(_path(folder, raw)):
        path, data = _decompressed(folder, packed, raw.bytes, compression, is_summed=True)
    else:
        path = _present(folder, raw)
        data = map_file(path).view(np.ndarray)
    return path, _checked(path, data, raw)


def _decompressed(
    folder: str, packed: _File, size: int, compression: str, *, is_summed: bool = False
) -> tuple[str, npt.NDArray[np.uint8]]:
    """The path of a compressed file and its ``size`` bytes.

    The index of MDS also has the sums of the compressed ones: ``is_summed``.
    """
    path = _present(folder, packed)
    if is_summed:
        _checked(path, map_file(path), packed)
    kind = compression.partition(":")[0]
    if kind not in _COMPRESSIONS:
        raise UsageError(
            f"{path}: is compressed by {kind or 'something that the index does not name'}, which "
            "is not read: write it again with zstd, or without a compression"
        )
    source = Source(path, path, "file", _COMPRESSIONS[kind], size_of(path), 0)
    content, step = bytearray(), memoryview(bytearray(_STEP))
    with closing(open_stream(source)) as stream:
        while len(content) <= size and (count := fill(stream, step)):
            content += step[:count]
    if len(content) != size:
        raise FormatError(f"{path}: is not {size} bytes when decompressed, as {INDEX} says")
    return path, np.frombuffer(content, np.uint8)


_COMPRESSIONS = {"zstd": "zst", "gz": "gz", "bz2": "bz2"}  # their names, and ours


def _path(folder: str, file: _File) -> str:
    index, path = os.path.join(folder, INDEX), os.path.join(folder, file.basename)
    if os.path.basename(file.basename) != file.basename or not file.basename:
        raise FormatError(f"{index}: {file.basename!r} is no name of a file")
    return path


def _present(folder: str, file: _File) -> str:
    """The path of a file that the index lists. InputError if it is absent."""
    path = _path(folder, file)
    if not os.path.exists(path):
        raise InputError(f"{path}: is listed in {INDEX}, and absent: copy the whole folder")
    return path


def _checked(path: str, data: npt.NDArray[np.uint8], file: _File) -> npt.NDArray[np.uint8]:
    """The bytes of a file, as the index says that they are. FormatError."""
    if len(data) != file.bytes:
        raise FormatError(
            f"{path}: {len(data)} bytes, {file.bytes} in {INDEX}: it is cut off, or of another "
            "dataset; copy it again"
        )
    for name, expected in file.hashes.items():
        library = xxhash if name in xxhash.algorithms_available else hashlib
        known = chain(xxhash.algorithms_available, hashlib.algorithms_guaranteed)
        if name not in known or name.startswith("shake"):
            raise FormatError(f"{path}: its hash {name!r} is not known, so it cannot be checked")
        if getattr(library, name)(data).hexdigest() != expected:
            raise FormatError(f"{path}: its {name} differs from {INDEX}'s: copy it again")
    return data

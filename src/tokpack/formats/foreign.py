"""Datasets of token ids in other formats, opened for reading: see docs/datasets.md.

As in ``format``, nothing in a file is trusted: sizes are compared with those of the files before
anything after a header is read, and every entry of an index is checked.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.format import MAX_LENGTH
from tokpack.errors import FormatError, InputError, UsageError, option
from tokpack.storage.disk import cannot_read, pointer_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokpack.dataset.manifest import Manifest
    from tokpack.dataset.mapped import LazyTokens

_BEGIN = 64  # items in which a pointer of Git LFS shows
STEP = 1 << 20  # ids, or lengths, handled at a time
NPY_MAGIC = b"\x93NUMPY"
_SHARD_BYTES = 1024  # header of an llm.c shard: 256 int32
_SHARDS: dict[int, tuple[np.dtype[Any], int]] = {
    20240520: (np.dtype("<u2"), 50256),
    20240801: (np.dtype("<u4"), 128000),
}
_SHARD_VERSIONS = (1, 7)  # of the magic 20240520, and of 20240801


Arrays = Iterator[npt.NDArray[Any]]  # parts of an array, in order


@dataclass(frozen=True)
class ForeignDataset:
    """A dataset of any format: its ids, and the lengths of its sequences, each in parts."""

    name: str
    dtype: np.dtype[Any]  # as stored
    sequences: int
    lengths: Callable[[], Arrays]
    ids: Callable[[], Arrays]
    doc_idx: npt.NDArray[np.int64] | None = None  # None: each sequence is a document
    modes: npt.NDArray[np.int8] | None = None  # of sequences, where they are multimodal
    manifest: Manifest | None = None
    tokenizer: str = ""  # its name, where the format tells it
    notes: tuple[str, ...] = field(default=())  # what a user should know
    # A value for each id, in parts of any size: the tracks that docs/format.md describes.
    tracks: Mapping[str, Callable[[], Arrays]] = field(default_factory=dict)
    # Lengths and ids of the same sequences, in parts, if they can only be read together.
    both: Callable[[], Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]] | None = None


def size_of(path: str) -> int:
    """The size of a file in bytes. InputError if it cannot be read."""
    with cannot_read(path):
        return os.path.getsize(path)


def map_file(path: str, dtype: npt.DTypeLike = np.uint8, begin: int = 0) -> npt.NDArray[Any]:
    """A file from byte ``begin`` on as a mapped array. InputError, FormatError for odd bytes."""
    size = size_of(path) - begin
    if size % np.dtype(dtype).itemsize:
        raise FormatError(f"{path}: {size} bytes are not a whole number of {np.dtype(dtype)}")
    if size <= 0:
        return np.zeros(0, dtype)
    with cannot_read(path):
        array = np.memmap(path, dtype, "r", begin)
    if not begin and (pointer := pointer_in(array[:_BEGIN].tobytes())):
        raise FormatError(f"{path}: this is {pointer}")
    return array


def open_mmap(prefix: str) -> ForeignDataset:
    """A dataset of Megatron's family, which may be virtual; every entry is checked."""
    dataset = MMapIndexedDataset(prefix, verify=True)

    def values(track: str | None = None) -> Arrays:
        return (part for shard in dataset.shards() for part in parts_of(shard.values(track)))

    return ForeignDataset(
        dataset.path_prefix,
        dataset.dtype,
        len(dataset),
        lambda: (part for shard in dataset.shards() for part in parts_of(shard.index.lengths)),
        values,
        dataset.doc_idx,
        dataset.modes,
        dataset.manifest,
        str(dataset.tokenizer.get("name", "")) if dataset.tokenizer else "",
        tracks={name: functools.partial(values, name) for name in dataset.tracks},
    )


def parts_of(array: npt.NDArray[Any] | LazyTokens) -> Arrays:
    """An array, STEP entries at a time."""
    return (array[at : at + STEP] for at in range(0, len(array), STEP))


def open_datatrove(path: str) -> ForeignDataset:
    """A datatrove ``.ds`` file, with the ends of its documents in ``.ds.index``.

    ``.ds.metadata`` has the tokenizer, the bytes of an id and the number of ids. Without it the
    bytes of an id follow from the last end of a document. ``.ds.loss`` is a mask.
    """
    ends = map_file(f"{path}.index", np.dtype("<u8"))
    tokenizer, width, count = _datatrove_metadata(f"{path}.metadata")
    dtype = np.dtype(f"<u{width}") if width else None
    opened = cut_at_ends(path, f"{path}.index", ends, dtype, tokenizer)
    if count is not None:
        _check_count(path, f"{path}.metadata", count, opened.dtype)
    loss = f"{path}.loss"
    if not os.path.exists(loss):
        return opened
    return replace(opened, tracks={"mask": masks_of(loss, int(ends[-1:].sum()))})


def masks_of(path: str, total: int) -> Callable[[], Arrays]:
    """The mask in a file with a byte for each of ``total`` ids, in parts. FormatError."""
    mask = map_file(path)
    if len(mask) != total:
        raise FormatError(f"{path}: {len(mask)} bytes, expected {total}, one for each id")
    return lambda: parts_of(mask)


def cut_at_ends(
    path: str,
    index: str,
    ends: npt.NDArray[Any],
    dtype: np.dtype[Any] | None,
    tokenizer: str = "",
) -> ForeignDataset:
    """A file of ids whose documents end at ``ends`` [D], in ids, as the file ``index`` says.

    Without a ``dtype`` an id has 2 or 4 bytes, which follows from the last end of a document.
    """
    total = int(ends[-1]) if len(ends) else 0
    dtype = dtype or np.dtype("<u4" if size_of(path) == 4 * total else "<u2")
    _check_count(path, index, total, dtype)
    ids = map_file(path, dtype)

    def lengths() -> Arrays:
        last = np.zeros(1, ends.dtype)
        for start in range(0, len(ends), STEP):
            bounds = np.concatenate([last, ends[start : start + STEP]])
            wrong = np.flatnonzero(bounds[1:] < bounds[:-1])
            if wrong.size:
                number = start + int(wrong[0])
                raise FormatError(f"{index}: document {number} ends before it begins")
            yield short_enough(np.diff(bounds), start, index)
            last = bounds[-1:]

    return ForeignDataset(
        path, dtype, len(ends), lengths, lambda: parts_of(ids), tokenizer=tokenizer
    )


def _check_count(path: str, index: str, count: int, dtype: np.dtype[Any]) -> None:
    size, expected = size_of(path), count * dtype.itemsize
    if size != expected:
        raise FormatError(
            f"{index}: {count} ids of {dtype.itemsize} bytes, but {path} has {size} bytes, "
            f"expected {expected}: the files do not belong together, or one is cut off"
        )


def _datatrove_metadata(path: str) -> tuple[str, int | None, int | None]:
    """The name of the tokenizer, bytes of an id and number of ids, if given."""
    if not os.path.exists(path):
        return "", None, None
    with open(path, "rb") as file:
        lines = file.read(1 << 16).decode(errors="replace").split("\n")
    name, bar, width = lines[0].rpartition("|")
    if not bar:
        name, width = lines[0], ""
    if width not in ("", "2", "4"):
        raise FormatError(f"{path}: an id has {width!r} bytes, expected 2 or 4")
    count = lines[1].strip() if len(lines) > 1 else ""
    if not (count.isascii() and count.isdigit() and len(count) < 20):
        raise FormatError(f"{path}: line 2 is {count!r}, expected the number of ids")
    return name.removesuffix(f"|{width}"), int(width) if width else None, int(count)


def open_npy(path: str, eod: int | None) -> ForeignDataset:
    """A numpy file: one dimension, cut at each ``eod``, or two, with one document per row."""
    try:
        ids: npt.NDArray[Any] = np.lib.format.open_memmap(path, "r")  # never loads a pickle
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except Exception as error:  # the header is a Python literal: its parser raises many kinds
        raise FormatError(f"{path}: not a valid .npy file: {error}") from None
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2):
        raise FormatError(
            f"{path}: holds {ids.dtype} in {ids.ndim} dimensions, expected integers in 1 or 2"
        )
    if ids.ndim == 1:
        return cut_at_eod(path, ids.dtype, lambda: parts_of(ids), eod)
    rows, length = ids.shape
    if length > MAX_LENGTH:
        raise FormatError(f"{path}: rows have {length} ids, more than {MAX_LENGTH}")
    step = max(1, STEP // max(1, length))
    return ForeignDataset(
        path,
        ids.dtype,
        rows,
        lambda: iter([np.full(rows, length, np.int32)]),
        lambda: (ids[at : at + step].reshape(-1) for at in range(0, rows, step)),
    )


def open_raw(path: str, dtype: str | None, eod: int | None) -> ForeignDataset:
    """A file of ids and nothing else, as nanoGPT writes it; a document ends with ``eod``."""
    if dtype is None:
        raise UsageError(
            f"{path}: a file without a header does not say the type of its ids: add "
            f"{option('input_dtype', 'uint16')}, or whatever it was written with"
        )
    ids = map_file(path, raw_dtype(path, dtype))
    return cut_at_eod(path, ids.dtype, lambda: parts_of(ids), eod)


def raw_dtype(path: str, dtype: str) -> np.dtype[Any]:
    """The type of the ids in a file without a header. UsageError if it has a header."""
    if map_file(path)[: len(NPY_MAGIC)].tobytes() == NPY_MAGIC:
        raise UsageError(
            f"{path}: begins with numpy's header, so it is not raw: give {option('from_', 'npy')}"
        )
    try:
        stored: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise UsageError(
            f"{dtype!r} is not a type of ids; use uint16, int32 or another integer type"
        ) from None
    return stored.newbyteorder("<")


def is_shard(head: bytes) -> bool:
    """Whether a file begins like a shard of llm.c or modded-nanogpt."""
    return len(head) >= 4 and int.from_bytes(head[:4], "little") in _SHARDS


def open_shard(path: str, eod: int | None) -> ForeignDataset:
    """A shard of llm.c or modded-nanogpt, where each document *begins* with the EOD token."""
    head = map_file(path)[:_SHARD_BYTES].tobytes()
    if len(head) < _SHARD_BYTES:
        raise FormatError(f"{path}: the header is cut off: {len(head)} bytes, expected 1024")
    magic, version, count = struct.unpack_from("<iii", head)
    if magic not in _SHARDS:
        raise FormatError(
            f"{path}: magic is {magic}, expected one of {', '.join(map(str, _SHARDS))}"
        )
    if version not in _SHARD_VERSIONS:
        raise FormatError(f"{path}: version is {version}, expected 1 or 7")
    dtype, usual_eod = _SHARDS[magic]
    ids = map_file(path, dtype, _SHARD_BYTES)
    if count != len(ids):
        raise FormatError(f"{path}: {count} ids in the header, {len(ids)} in the file: cut off?")
    eod = usual_eod if eod is None else eod
    return cut_at_eod(path, ids.dtype, lambda: parts_of(ids), eod, first=True)


def cut_at_eod(
    path: str,
    dtype: np.dtype[Any],
    ids: Callable[[], Arrays],
    eod: int | None,
    *,
    first: bool = False,
) -> ForeignDataset:
    """The documents that end with ``eod``, or begin with it if it comes ``first``."""
    if eod is None:
        raise UsageError(
            f"{path}: one run of {sum(map(len, ids()))} ids, which does not say where documents "
            f"end: add the id that ends a document, such as {option('eod', 50256)} for GPT-2"
        )
    count = sum(len(bounds) for bounds in _document_ends(ids, eod, first=first))
    if count == 1 and not any((part == eod).any() for part in ids()):
        raise UsageError(
            f"{path}: none of the {sum(map(len, ids()))} ids is {eod}: {option('eod')} is wrong, "
            "or the type of the ids"
        )

    def lengths() -> Arrays:
        last, number = 0, 0
        for bounds in _document_ends(ids, eod, first=first):
            yield short_enough(np.diff(bounds, prepend=last), number, path)
            last, number = int(bounds[-1]), number + len(bounds)

    return ForeignDataset(path, dtype, count, lengths, ids)


def _document_ends(ids: Callable[[], Arrays], eod: int, *, first: bool) -> Arrays:
    """The ends of documents, in ids, some at a time; leftover ids are one more document."""
    start = last = 0
    for part in ids():
        ends = np.flatnonzero(part == eod) + start
        ends = ends[ends > 0] if first else ends + 1
        start += len(part)
        if ends.size:
            last = int(ends[-1])
            yield ends
    if last < start:
        yield np.array([start])


def short_enough(lengths: npt.NDArray[Any], start: int, name: str) -> npt.NDArray[Any]:
    """Lengths of documents, from number ``start`` on. FormatError if one has too many ids."""
    wrong = np.flatnonzero(lengths > MAX_LENGTH)
    if wrong.size:
        raise FormatError(
            f"{name}: document {start + wrong[0]} has {lengths[wrong[0]]} ids, "
            f"more than {MAX_LENGTH}"
        )
    return lengths

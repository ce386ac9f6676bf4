"""Datasets of token ids in other formats, opened for reading: see docs/datasets.md.

Nothing in a file is believed, as in ``format``: sizes are compared with those of the files before
anything behind a header is looked at, and every entry of an index is checked.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.files.durable import cannot_read
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import DTYPES, MAX_LENGTH, bin_path, dtype_of_code, idx_path
from tokpack.operations.tntidx import read_lazy_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokpack.indexed.stored import StoredTokens

STEP = 1 << 20  # ids, or lengths, handled at a time
_NONE = np.zeros(0, np.int64)
# fairseq's mmap index: as Megatron's, without the number of document entries, and two codes more.
_FAIRSEQ = struct.Struct("<9sQBQ")
_FAIRSEQ_DTYPES = {**DTYPES, 9: np.dtype("<u4"), 10: np.dtype("<u8")}
_SHARD_BYTES = 1024  # header of an llm.c shard: 256 int32
_SHARDS: dict[int, tuple[np.dtype[Any], int]] = {
    20240520: (np.dtype("<u2"), 50256),
    20240801: (np.dtype("<u4"), 128000),
}
_SHARD_VERSIONS = (1, 7)  # of the magic 20240520, and of 20240801


class Chunk(NamedTuple):
    """Some ids, and some lengths: each continues where the one before ended."""

    ids: npt.NDArray[Any]
    lengths: npt.NDArray[Any]


@dataclass(frozen=True)
class Opened:
    """A dataset of any format: what it has, and a walk over its ids and its sequences' lengths."""

    name: str
    dtype: np.dtype[Any]  # as stored
    sequences: int
    chunks: Callable[[], Iterator[Chunk]]
    doc_idx: npt.NDArray[np.int64] | None = None  # None: each sequence is a document
    tokenizer: str = ""  # its name, where the format tells it
    notes: tuple[str, ...] = field(default=())  # what a user should know


def size_of(path: str) -> int:
    """Bytes of a file; InputError where it cannot be read."""
    with cannot_read(path):
        return os.path.getsize(path)


def map_file(path: str, dtype: npt.DTypeLike = np.uint8, begin: int = 0) -> npt.NDArray[Any]:
    """A file from byte ``begin`` as an array, mapped; InputError, FormatError for odd bytes."""
    size = size_of(path) - begin
    if size % np.dtype(dtype).itemsize:
        raise FormatError(f"{path}: {size} bytes are not a whole number of {np.dtype(dtype)}")
    if size <= 0:
        return np.zeros(0, dtype)
    with cannot_read(path):
        return np.memmap(path, dtype, "r", begin)


def open_mmap(prefix: str) -> Opened:
    """A dataset of Megatron's family, which may be virtual; every entry is checked."""
    dataset = MMapIndexedDataset(prefix, verify=True)

    def chunks() -> Iterator[Chunk]:
        for shard in dataset.shards():
            yield from _both(shard.tokens, shard.index.lengths)

    return Opened(prefix, dataset.dtype, len(dataset), chunks, dataset.doc_idx)


def open_lazy(prefix: str, *, fairseq: bool) -> Opened:
    """A TNTIDX dataset. One without documents is read only as ``fairseq``'s, which adds 1 to ids.

    Early Megatrons wrote the same header, and ids as they are: so no one can tell by the file.
    """
    name = idx_path(prefix)
    index = read_lazy_index(map_file(name), size_of(bin_path(prefix)), name)
    ids = map_file(bin_path(prefix), index.dtype)
    if index.doc_idx is not None:
        return Opened(
            name, index.dtype, len(index.sizes), lambda: _both(ids, index.sizes), index.doc_idx
        )
    if not fairseq:
        raise FormatError(
            f"{name}: no document entries: written by fairseq, which adds 1 to every id, or by an "
            "early Megatron, which does not; if by fairseq, say --from fairseq"
        )

    def chunks() -> Iterator[Chunk]:
        for block in _both(ids, index.sizes):
            if block.ids.size and int(block.ids.min()) < 1:
                raise FormatError(
                    f"{bin_path(prefix)}: holds the id {int(block.ids.min())}, but fairseq adds 1 "
                    "to every id: not written by fairseq"
                )
            yield Chunk(block.ids - block.ids.dtype.type(1), block.lengths)

    note = "fairseq adds 1 to every id and keeps no documents: 1 is taken off, a document an item"
    return Opened(name, index.dtype, len(index.sizes), chunks, notes=(note,))


def open_fairseq_mmap(prefix: str) -> Opened:
    """A dataset in fairseq's ``mmap`` format, which has no documents: each sequence is one."""
    name = idx_path(prefix)
    buffer = map_file(name)
    if len(buffer) < _FAIRSEQ.size:
        raise FormatError(f"{name}: the header is cut off: {len(buffer)} bytes, expected 26")
    _, version, code, count = _FAIRSEQ.unpack(buffer[: _FAIRSEQ.size].tobytes())
    dtype = _FAIRSEQ_DTYPES.get(code) or dtype_of_code(code, name)
    expected = _FAIRSEQ.size + 12 * count
    if version != 1 or len(buffer) != expected:
        raise FormatError(
            f"{name}: version {version} and {len(buffer)} bytes, expected 1 and {expected}"
        )
    lengths = buffer[26 : 26 + 4 * count].view("<i4")
    ids = map_file(bin_path(prefix), dtype)
    _check_pointers(lengths, buffer[26 + 4 * count :].view("<i8"), ids, name)
    note = "no documents in fairseq's index: each sequence becomes a document"
    return Opened(name, dtype, count, lambda: _both(ids, lengths), notes=(note,))


def _check_pointers(
    lengths: npt.NDArray[Any], pointers: npt.NDArray[Any], ids: npt.NDArray[Any], name: str
) -> None:
    end = 0
    for start in range(0, len(lengths), STEP):
        wide = lengths[start : start + STEP].astype(np.int64)
        ends = np.cumsum(wide) + end
        wrong = np.flatnonzero(
            (wide < 0) | (pointers[start : start + STEP] != (ends - wide) * ids.itemsize)
        )
        if wrong.size:
            number = start + int(wrong[0])
            raise FormatError(
                f"{name}: sequence {number} has pointer {pointers[number]} and length "
                f"{lengths[number]}, which do not follow from those before it"
            )
        end = int(ends[-1])
    if end != len(ids):
        raise FormatError(
            f"{name}: the sequences have {end} ids, the .bin {len(ids)}: the files do not belong "
            "together, or one is cut off"
        )


def open_datatrove(path: str) -> Opened:
    """A datatrove ``.ds`` file, with the ends of its documents in ``.ds.index``.

    ``.ds.metadata`` tells the tokenizer, the bytes of an id and the number of ids; without it an id
    has as many bytes as the last end of a document says.
    """
    ends = map_file(f"{path}.index", np.dtype("<u8"))
    size = size_of(path)
    total = int(ends[-1]) if len(ends) else 0
    tokenizer, width, count = _datatrove_metadata(f"{path}.metadata")
    width = width or (4 if size == 4 * total else 2)
    for what, expected in ((f"{path}.index", total), (f"{path}.metadata", count)):
        if expected is not None and expected * width != size:
            raise FormatError(
                f"{what}: {expected} ids of {width} bytes, but {path} has {size} bytes, expected "
                f"{expected * width}: the files do not belong together, or one is cut off"
            )
    dtype = np.dtype("<u4" if width == 4 else "<u2")
    ids = map_file(path, dtype)

    def lengths() -> Iterator[npt.NDArray[Any]]:
        last = np.zeros(1, np.uint64)
        for start in range(0, len(ends), STEP):
            bounds = np.concatenate([last, ends[start : start + STEP]])
            wrong = np.flatnonzero(bounds[1:] < bounds[:-1])
            if wrong.size:
                number = start + int(wrong[0])
                raise FormatError(f"{path}.index: document {number} ends before it begins")
            yield _short_enough(np.diff(bounds), start, f"{path}.index")
            last = bounds[-1:]

    return Opened(path, dtype, len(ends), lambda: _walk(ids, lengths()), tokenizer=tokenizer)


def _datatrove_metadata(path: str) -> tuple[str, int | None, int | None]:
    """Name of the tokenizer, bytes of an id, number of ids, as far as they are told."""
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


def open_npy(path: str, eod: int | None) -> Opened:
    """A numpy file: of one dimension, cut at each ``eod``, or of two, a document a row."""
    try:
        ids: npt.NDArray[Any] = np.lib.format.open_memmap(path, "r")  # never loads a pickle
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except Exception as error:  # the header is a Python literal: its parser raises many kinds
        raise FormatError(f"{path}: not a right .npy file: {error}") from None
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2):
        raise FormatError(
            f"{path}: holds {ids.dtype} in {ids.ndim} dimensions, expected integers in 1 or 2"
        )
    if ids.ndim == 1:
        return _cut_at_eod(path, ids, eod, first=False)
    rows, length = ids.shape
    if length > MAX_LENGTH:
        raise FormatError(f"{path}: rows have {length} ids, more than {MAX_LENGTH}")
    step = max(1, STEP // max(1, length))

    def chunks() -> Iterator[Chunk]:
        for start in range(0, rows, step):
            part = ids[start : start + step]
            yield Chunk(part.reshape(-1), np.full(len(part), length))

    return Opened(path, ids.dtype, rows, chunks)


def open_raw(path: str, dtype: str | None, eod: int | None) -> Opened:
    """A file of ids and nothing else, as nanoGPT writes it; a document ends with ``eod``."""
    if dtype is None:
        raise UsageError(
            f"{path}: a file without a header does not tell the type of its ids: add "
            "--input-dtype uint16, or whatever it was written with"
        )
    try:
        stored: np.dtype[Any] = np.dtype(dtype)
        stored = stored.newbyteorder("<")
    except TypeError:
        raise UsageError(f"no type {dtype!r} of ids: uint16, int32 and so on") from None
    return _cut_at_eod(path, map_file(path, stored), eod, first=False)


def is_shard(head: bytes) -> bool:
    """Whether a file begins like a shard of llm.c or modded-nanogpt."""
    return len(head) >= 4 and int.from_bytes(head[:4], "little") in _SHARDS


def open_shard(path: str, eod: int | None) -> Opened:
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
    return _cut_at_eod(path, ids, usual_eod if eod is None else eod, first=True)


def _cut_at_eod(path: str, ids: npt.NDArray[Any], eod: int | None, *, first: bool) -> Opened:
    """Documents that end with ``eod``, or begin with it where it comes ``first``."""
    if eod is None:
        raise UsageError(
            f"{path}: one run of {len(ids)} ids, which does not tell where documents end: add "
            "--eod ID, such as --eod 50256 for GPT-2"
        )
    count = sum(len(bounds) for bounds in _document_ends(ids, eod, first=first))
    chunks = (ids[start : start + STEP] for start in range(0, len(ids), STEP))
    if count == 1 and not any((chunk == eod).any() for chunk in chunks):
        raise UsageError(
            f"{path}: none of the {len(ids)} ids is {eod}: --eod is wrong, or the type of the ids"
        )

    def lengths() -> Iterator[npt.NDArray[Any]]:
        last, number = 0, 0
        for bounds in _document_ends(ids, eod, first=first):
            yield _short_enough(np.diff(bounds, prepend=last), number, path)
            last, number = int(bounds[-1]), number + len(bounds)

    return Opened(path, ids.dtype, count, lambda: _walk(ids, lengths()))


def _document_ends(ids: npt.NDArray[Any], eod: int, *, first: bool) -> Iterator[npt.NDArray[Any]]:
    """Where documents end, in ids, some at a time; what is left at the end is one more."""
    last = 0
    for start in range(0, len(ids), STEP):
        found = np.flatnonzero(ids[start : start + STEP] == eod) + start
        found = found[found > 0] if first else found + 1
        if found.size:
            last = int(found[-1])
            yield found
    if last < len(ids):
        yield np.array([len(ids)])


def _short_enough(lengths: npt.NDArray[Any], start: int, name: str) -> npt.NDArray[Any]:
    wrong = np.flatnonzero(lengths > MAX_LENGTH)
    if wrong.size:
        raise FormatError(
            f"{name}: document {start + wrong[0]} has {lengths[wrong[0]]} ids, "
            f"more than {MAX_LENGTH}"
        )
    return lengths


def _both(ids: npt.NDArray[Any] | StoredTokens, lengths: npt.NDArray[Any]) -> Iterator[Chunk]:
    """The ids, and the lengths, which are in an array."""
    return _walk(ids, (lengths[at : at + STEP] for at in range(0, len(lengths), STEP)))


def _walk(
    ids: npt.NDArray[Any] | StoredTokens, lengths: Iterator[npt.NDArray[Any]]
) -> Iterator[Chunk]:
    """The lengths, then the ids, STEP of them at a time."""
    for chunk in lengths:  # first: they are checked as they come, and are few
        yield Chunk(_NONE, chunk)
    for start in range(0, len(ids), STEP):
        yield Chunk(ids[start : start + STEP], _NONE)

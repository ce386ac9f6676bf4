"""Virtual datasets: a manifest that lists pieces, read as one dataset without copying them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.indexed.format import bin_path, idx_path, storage_dtype
from tokpack.indexed.manifest import Manifest, is_manifest, manifest_path
from tokpack.indexed.reader import MMapIndexedDataset, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPEN_PIECES = 64  # each has two maps
MAX_TOTAL = 2**62  # sequences, tokens: sums of pieces stay far inside 64 bits


@dataclass(frozen=True)
class Piece:
    """One dataset of a virtual one, and what it had when the manifest was written."""

    prefix: str  # relative to the folder of the manifest
    sequences: int
    documents: int  # entries of the document index - 1
    tokens: int
    bin_bytes: int
    idx_bytes: int
    xxh3_128: str  # of the .bin, from the piece's own manifest; "" where it has none


def measure(dataset: MMapIndexedDataset, prefix: str, digest: str = "") -> Piece:
    """The facts of an opened dataset."""
    return Piece(
        prefix=prefix,
        sequences=len(dataset),
        documents=len(dataset.doc_idx) - 1,
        tokens=len(dataset.tokens),
        bin_bytes=dataset.tokens.nbytes,
        idx_bytes=os.path.getsize(idx_path(dataset.path_prefix)),
        xxh3_128=digest,
    )


def is_virtual(prefix: str) -> bool:
    """Whether ``prefix`` has a manifest with pieces instead of files. Raises FormatError."""
    path = manifest_path(prefix)
    if os.path.exists(idx_path(prefix)) or not os.path.isfile(path):
        return False
    return is_manifest(path) and "pieces" in _load(path)


def read_pieces(prefix: str) -> tuple[np.dtype[Any], list[Piece]]:
    """The dtype and the pieces of a virtual dataset. Raises FormatError, InputError."""
    path = manifest_path(prefix)
    values = _load(path)
    manifest = Manifest.from_json(json.dumps(values), path)
    rows = values.get("pieces")
    if not isinstance(rows, list):
        raise FormatError(f"{path}: pieces is {type(rows).__name__}, expected a list")
    try:
        dtype = storage_dtype(manifest.dtype)
    except (TypeError, UsageError):
        raise FormatError(f"{path}: dtype is {manifest.dtype!r}, which no dataset has") from None
    pieces = [_piece(row, f"{path}: piece {number}") for number, row in enumerate(rows)]
    for what in ("sequences", "tokens"):
        total = sum(getattr(piece, what) for piece in pieces)
        if total != getattr(manifest, what) or total > MAX_TOTAL:
            raise FormatError(
                f"{path}: {what} are {getattr(manifest, what)}, expected {total}, "
                "the sum of the pieces"
            )
    return dtype, pieces


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            values = json.load(file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise FormatError(f"{path}: not a manifest: expected an object")
    return values


def _piece(row: Any, name: str) -> Piece:
    if not isinstance(row, dict):
        raise FormatError(f"{name} is {row!r}, expected an object")
    known: dict[str, Any] = {field.name: row.get(field.name) for field in fields(Piece)}
    for key, value in known.items():
        text = key in ("prefix", "xxh3_128")
        right = isinstance(value, str) if text else type(value) is int and 0 <= value <= MAX_TOTAL
        if not right or (key == "prefix" and (not value or "\0" in value)):
            raise FormatError(
                f"{name}: {key} is {value!r}, expected a {'name' if text else 'count'}"
            )
    return Piece(**known)


def pieces_json(manifest: Manifest, pieces: list[Piece]) -> str:
    """A manifest as JSON, with the pieces that make the dataset."""
    values = json.loads(manifest.to_json())
    return json.dumps({**values, "pieces": [asdict(p) for p in pieces]}, indent=2) + "\n"


class VirtualIndexedDataset(MMapIndexedDataset):
    """Many datasets as one, which is what ``MMapIndexedDataset(PREFIX)`` opens for a virtual one.

    It reads like any dataset. Opening takes as long as reading the manifest; pieces are opened when
    they are needed, and at most OPEN_PIECES stay open besides those whose arrays somebody holds. A
    piece that is not what it was is a FormatError that names it. ``sizes`` and ``doc_idx`` open all
    pieces once and take 4 bytes a sequence and 8 a document; ``tokens`` does not exist.
    """

    def __init__(
        self,
        path_prefix: str | os.PathLike[str],
        skip_warmup: bool = True,
        *,
        verify: bool = False,
    ) -> None:
        self._prefix = os.fsdecode(path_prefix)
        self._view = None
        self._closed = False
        self._dtype, self._pieces = read_pieces(self._prefix)
        counts = [piece.sequences for piece in self._pieces]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._sizes: npt.NDArray[np.int32] | None = None
        self._doc_idx: npt.NDArray[np.int64] | None = None
        self._open = _opener(self._prefix, self._dtype, self._pieces)
        if verify:
            self.validate()

    def __len__(self) -> int:
        """Number of sequences."""
        self._check_open()
        return int(self._starts[-1])

    @overload
    def __getitem__(self, idx: SupportsIndex) -> Tokens: ...
    @overload
    def __getitem__(self, idx: slice) -> list[Tokens]: ...
    def __getitem__(self, idx: SupportsIndex | slice) -> Tokens | list[Tokens]:
        if isinstance(idx, slice):
            return [self._at(number) for number in range(*idx.indices(len(self)))]
        return self._at(self._position(idx))

    def __iter__(self) -> Iterator[Tokens]:
        self._check_open()
        return (sequence for part in self.parts() for sequence in part)

    def get(self, idx: SupportsIndex, offset: int = 0, length: int | None = None) -> Tokens:
        """``length`` tokens of sequence ``idx`` from token ``offset``; all the rest without it.

        IndexError where the piece does not lie inside the sequence.
        """
        tokens = self._at(self._position(idx))
        begin = as_integer(offset)
        end = len(tokens) if length is None else begin + as_integer(length)
        if not 0 <= begin <= end <= len(tokens):
            raise IndexError(
                f"{self._prefix}: tokens {begin} to {end} of sequence {idx}, "
                f"which has {len(tokens)} tokens"
            )
        return tokens[begin:end]

    def parts(self) -> Iterator[MMapIndexedDataset]:
        """The pieces in order, each opened when its turn comes."""
        opened, count = self._open, len(self._pieces)  # a walk outlives close()
        return (opened(number) for number in range(count))

    def part(self, number: int) -> MMapIndexedDataset:
        """Piece ``number``, opened."""
        return self._open(number)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """First sequence of each piece, then S: int64 [pieces + 1]."""
        return self._starts

    @property
    def pieces(self) -> list[Piece]:
        """What the manifest says about each piece."""
        return list(self._pieces)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the token ids, little endian."""
        self._check_open()
        return self._dtype

    @property
    def tokens(self) -> Tokens:
        """UsageError: the tokens of a virtual dataset do not lie in one file."""
        raise UsageError(
            f"{self._prefix}: a virtual dataset, whose tokens lie in {len(self._pieces)} files: "
            "read sequences, or make one dataset of it with `tokpack merge`"
        )

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        """Tokens in each sequence: int32 [S], read-only; made when first asked for."""
        self._check_open()
        if self._sizes is None:
            sizes = [np.zeros(0, np.int32), *(part.sizes for part in self.parts())]
            self._sizes = _frozen(np.concatenate(sizes))
        return self._sizes

    @property
    def doc_idx(self) -> npt.NDArray[np.int64]:
        """First sequence of each document, then S: int64 [documents + 1], read-only."""
        self._check_open()
        if self._doc_idx is None:
            parts = zip(self._starts.tolist(), self.parts(), strict=False)
            entries = [part.doc_idx[1:] + start for start, part in parts]
            self._doc_idx = _frozen(np.concatenate([np.zeros(1, np.int64), *entries]))
        return self._doc_idx

    def validate(self) -> None:
        """Check every entry of every piece; FormatError names the first bad one."""
        self._check_open()
        for piece, part in zip(self._pieces, self.parts(), strict=True):
            part.validate()
            _check_digest(self._prefix, part.path_prefix, piece)

    def close(self) -> None:
        """Let go of the files. Arrays handed out stay valid, and keep their file mapped."""
        self._closed = True
        self._open = _opener(self._prefix, self._dtype, [])

    def __repr__(self) -> str:
        if self._closed:
            return f"VirtualIndexedDataset({self._prefix!r}, closed)"
        return (
            f"VirtualIndexedDataset({self._prefix!r}, {len(self._pieces)} pieces, "
            f"{len(self)} sequences, {self._dtype})"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self._prefix}: the dataset is closed")

    def _at(self, number: int) -> Tokens:
        piece = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._open(piece)[number - int(self._starts[piece])]


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def _opener(
    prefix: str, dtype: np.dtype[Any], pieces: list[Piece]
) -> Callable[[int], MMapIndexedDataset]:
    # The cache of functools may be used from threads and across fork: it holds no lock meanwhile.
    return lru_cache(OPEN_PIECES)(partial(_open_piece, prefix, dtype, pieces))


def _open_piece(
    prefix: str, dtype: np.dtype[Any], pieces: list[Piece], number: int
) -> MMapIndexedDataset:
    piece = pieces[number]
    path = os.path.join(os.path.dirname(prefix), piece.prefix)
    where = f"{manifest_path(prefix)}: piece {number}, {path},"
    if not os.path.exists(idx_path(path)):
        raise InputError(f"{where} is missing: put it back, or merge the others again")
    dataset = MMapIndexedDataset(path)
    if dataset.dtype != dtype:
        raise FormatError(f"{where} has ids of {dataset.dtype}, expected {dtype}: it has changed")
    found = measure(dataset, piece.prefix, piece.xxh3_128)
    for field in fields(Piece):
        now, then = getattr(found, field.name), getattr(piece, field.name)
        if now != then:
            raise FormatError(
                f"{where} has changed: {field.name} is {now}, expected {then}; merge again"
            )
    return dataset


def _check_digest(prefix: str, path: str, piece: Piece) -> None:
    if not piece.xxh3_128 or not os.path.exists(manifest_path(path)):
        return
    digest = Manifest.load(path).bin["xxh3_128"]
    if digest != piece.xxh3_128:
        raise FormatError(
            f"{manifest_path(prefix)}: piece {path} has changed: xxh3_128 of {bin_path(path)} is "
            f"{digest}, expected {piece.xxh3_128}; merge again"
        )


def parts_of(dataset: MMapIndexedDataset) -> Iterator[MMapIndexedDataset]:
    """The datasets that hold the files of one: its pieces where it is virtual, else itself."""
    if isinstance(dataset, VirtualIndexedDataset):
        yield from dataset.parts()
    else:
        yield dataset

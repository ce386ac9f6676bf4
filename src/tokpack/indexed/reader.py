"""Read a ``.bin/.idx`` dataset through memory maps."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from dataclasses import dataclass
from operator import index as as_integer
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from tokpack.errors import InputError
from tokpack.indexed.format import (
    HEADER_BYTES,
    Index,
    bin_path,
    check_all,
    check_ends,
    idx_path,
    parse_header,
    sequence_span,
    view_index,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

Tokens = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _View:
    """The mapped files. Arrays hold the maps, so these live as long as any array handed out."""

    index: Index
    tokens: Tokens
    bin_bytes: int


class MMapIndexedDataset:
    """The sequences of a Megatron dataset, as read-only arrays that lie in the page cache.

    ``path_prefix`` is the dataset's name without ``.bin`` and ``.idx`` (with either is fine too).
    ``ds[i]`` is sequence i, ``ds[a:b:step]`` a list of sequences, ``ds.get(i, offset, length)`` a
    piece of one: one-dimensional arrays of ``ds.dtype``, not copied, valid for as long as somebody
    holds them, also after the dataset is closed or gone.

    Opening takes constant time: it checks the header, the sizes of both files and the ends of
    the index. Every access checks its own entry. ``verify=True``, or ``validate()``, checks all
    entries. A broken file is a FormatError, a missing one an InputError, an index out of range an
    IndexError. The dataset may be used from threads and across fork; a pickle holds the path only.

    ``skip_warmup`` is what fairseq's users pass; nothing is ever read ahead.
    A virtual dataset (`tokpack merge --virtual`) is opened by its prefix, like any other.
    """

    def __new__(
        cls, path_prefix: str | os.PathLike[str], *rest: Any, **options: Any
    ) -> MMapIndexedDataset:
        if cls is MMapIndexedDataset and _is_virtual(_resolve(path_prefix)):
            from tokpack.indexed.virtual import VirtualIndexedDataset

            return object.__new__(VirtualIndexedDataset)
        return object.__new__(cls)

    def __init__(
        self,
        path_prefix: str | os.PathLike[str],
        skip_warmup: bool = True,
        *,
        verify: bool = False,
    ) -> None:
        self._prefix = _resolve(path_prefix)
        self._view: _View | None = _open(self._prefix)
        if verify:
            self.validate()

    @staticmethod
    def exists(path_prefix: str | os.PathLike[str]) -> bool:
        """Whether both files of the dataset are there, or the manifest of a virtual one."""
        prefix = _resolve(path_prefix)
        files = Path(idx_path(prefix)).is_file() and Path(bin_path(prefix)).is_file()
        return files or _is_virtual(prefix)

    def __len__(self) -> int:
        """Number of sequences."""
        return self._opened().index.header.sequences

    @overload
    def __getitem__(self, idx: SupportsIndex) -> Tokens: ...
    @overload
    def __getitem__(self, idx: slice) -> list[Tokens]: ...
    def __getitem__(self, idx: SupportsIndex | slice) -> Tokens | list[Tokens]:
        view = self._opened()
        if isinstance(idx, slice):
            count = view.index.header.sequences
            return [_sequence(view, number) for number in range(*idx.indices(count))]
        return _sequence(view, self._position(idx))

    def __iter__(self) -> Iterator[Tokens]:
        view = self._opened()
        return (_sequence(view, number) for number in range(view.index.header.sequences))

    def get(self, idx: SupportsIndex, offset: int = 0, length: int | None = None) -> Tokens:
        """``length`` tokens of sequence ``idx`` from token ``offset``; all the rest without it.

        IndexError where the piece does not lie inside the sequence.
        """
        view = self._opened()
        tokens = _sequence(view, self._position(idx))
        begin = as_integer(offset)
        end = len(tokens) if length is None else begin + as_integer(length)
        if not 0 <= begin <= end <= len(tokens):
            raise IndexError(
                f"{self._prefix}: tokens {begin} to {end} of sequence {idx}, "
                f"which has {len(tokens)} tokens"
            )
        return tokens[begin:end]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the token ids, little endian."""
        return self._opened().index.header.dtype

    @property
    def tokens(self) -> Tokens:
        """All tokens, one sequence after the other: a read-only view of the .bin."""
        return self._opened().tokens

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        """Tokens in each sequence: int32 [S], a read-only view of the file."""
        return self._opened().index.lengths

    @property
    def doc_idx(self) -> npt.NDArray[np.int64]:
        """First sequence of each document, then S: int64 [documents + 1], a read-only view.

        The view need not be aligned; ``np.require(ds.doc_idx, requirements="A")`` copies if needed.
        """
        return self._opened().index.doc_idx

    @property
    def pointers(self) -> npt.NDArray[np.int64]:
        """First byte of each sequence in the .bin: int64 [S], a read-only view, not aligned."""
        return self._opened().index.pointers

    @property
    def sequence_lengths(self) -> npt.NDArray[np.int32]:
        """Megatron-core's name for ``sizes``."""
        return self.sizes

    @property
    def document_indices(self) -> npt.NDArray[np.int64]:
        """Megatron-core's name for ``doc_idx``."""
        return self.doc_idx

    @property
    def supports_prefetch(self) -> bool:
        """False: the page cache does it."""
        return False

    @property
    def path_prefix(self) -> str:
        """The dataset's name, without ``.bin`` and ``.idx``."""
        return self._prefix

    def validate(self) -> None:
        """Check every entry of the index, about 5 ns each; FormatError names the first bad one."""
        view = self._opened()
        check_all(view.index, view.bin_bytes)

    def release(self) -> None:
        """Give the memory of the index's map back; it stays readable, from the page cache."""
        self._opened().index.release()

    def close(self) -> None:
        """Let go of the files. Arrays handed out stay valid, and keep their file mapped."""
        self._view = None

    def __enter__(self) -> MMapIndexedDataset:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[MMapIndexedDataset], tuple[str]]:
        return type(self), (self._prefix,)

    def __repr__(self) -> str:
        if self._view is None:
            return f"MMapIndexedDataset({self._prefix!r}, closed)"
        return f"MMapIndexedDataset({self._prefix!r}, {len(self)} sequences, {self.dtype})"

    def _opened(self) -> _View:
        if self._view is None:
            raise ValueError(f"{self._prefix}: the dataset is closed")
        return self._view

    def _position(self, idx: SupportsIndex) -> int:
        number = as_integer(idx)
        count = len(self)
        if not -count <= number < count:
            raise IndexError(f"{self._prefix}: sequence {number} of {count}")
        return number % count


def _sequence(view: _View, number: int) -> Tokens:
    begin, length = sequence_span(view.index, number, view.bin_bytes)
    return view.tokens[begin : begin + length]


def _resolve(path_prefix: str | os.PathLike[str]) -> str:
    """The prefix, from itself or from the name of either file."""
    prefix = os.fsdecode(path_prefix)
    stem, suffix = os.path.splitext(prefix)
    if suffix in (".bin", ".idx") and not Path(idx_path(prefix)).exists():
        return stem
    return prefix


def _is_virtual(prefix: str) -> bool:
    if os.path.exists(idx_path(prefix)):
        return False
    from tokpack.indexed.virtual import is_virtual

    return is_virtual(prefix)


def _open(prefix: str) -> _View:
    name = idx_path(prefix)
    buffer, size = _map(name)
    header = parse_header(buffer[:HEADER_BYTES], size, name)
    index = view_index(buffer, header, name)
    data, bin_bytes = _map(bin_path(prefix))
    check_ends(index, bin_bytes)
    return _View(index, np.frombuffer(data, header.dtype), bin_bytes)


def _map(path: str) -> tuple[bytes | mmap.mmap, int]:
    """Map a whole file read-only; its size is that of the map, whatever happens to the name."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before opening: a pipe would block for ever
            raise InputError(f"{path}: not a regular file")
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:  # cannot be mapped
                return b"", 0
            if sys.version_info >= (3, 13):  # keeps no second descriptor open
                return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, trackfd=False), size
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), size
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; a dataset is PREFIX.bin and PREFIX.idx, and is opened by its "
            "PREFIX; a run that did not finish leaves none, and can be run again"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error

"""Access to the sequences and documents of a dataset: to their tokens, or to values of a track."""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Values = npt.NDArray[Any]


class Sequences(ABC):
    """Values of sequences by their numbers: one-dimensional read-only arrays of ``dtype``."""

    @property
    @abstractmethod
    def path_prefix(self) -> str:
        """The dataset's name."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values, little endian."""

    @property
    @abstractmethod
    def doc_idx(self) -> npt.NDArray[np.int64]:
        """First sequence of each document, then S: int64 [documents + 1]."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of sequences."""

    @abstractmethod
    def _at(self, number: int) -> Values:
        """Sequence ``number``, in [0, S)."""

    @overload
    def __getitem__(self, idx: SupportsIndex) -> Values: ...
    @overload
    def __getitem__(self, idx: slice) -> list[Values]: ...
    def __getitem__(self, idx: SupportsIndex | slice) -> Values | list[Values]:
        if isinstance(idx, slice):
            return [self._at(number) for number in range(*idx.indices(len(self)))]
        return self._at(self._position(idx))

    def __iter__(self) -> Iterator[Values]:
        return (self._at(number) for number in range(len(self)))

    def get(self, idx: SupportsIndex, offset: int = 0, length: int | None = None) -> Values:
        """``length`` values of sequence ``idx`` from number ``offset``; all the rest without it.

        IndexError where the piece does not lie inside the sequence.
        """
        values = self._at(self._position(idx))
        begin = as_integer(offset)
        end = len(values) if length is None else begin + as_integer(length)
        if not 0 <= begin <= end <= len(values):
            raise IndexError(
                f"{self.path_prefix}: tokens {begin} to {end} of sequence {idx}, "
                f"which has {len(values)} tokens"
            )
        return values[begin:end]

    def document(self, number: int) -> Values:
        """Those of document ``number``, in [0, documents): of its sequences in a row.

        They are copied only where they are several. IndexError where there is no such document,
        FormatError for a broken index.
        """
        bounds = self.doc_idx
        if not 0 <= number < len(bounds) - 1:
            raise IndexError(f"{self.path_prefix}: document {number} of {len(bounds) - 1}")
        first, last = bounds.item(number), bounds.item(number + 1)
        if not 0 <= first <= last <= len(self):
            raise FormatError(
                f"{self.path_prefix}.idx: document {number} is sequences {first} to {last} "
                f"of {len(self)}"
            )
        if last - first == 1:
            return self[first]
        sequences = self[first:last]
        return np.concatenate(sequences) if sequences else np.empty(0, self.dtype)

    def _position(self, idx: SupportsIndex) -> int:
        number = as_integer(idx)
        count = len(self)
        if not -count <= number < count:
            raise IndexError(f"{self.path_prefix}: sequence {number} of {count}")
        return number % count


class DatasetTrack(Sequences):
    """A track of a dataset: ``track[i]`` has a value for each token of ``dataset[i]``.

    Slices, ``get`` and ``document`` are as those of the dataset. Where a shard has no such track
    but another one has, every token counts: its mask and its weight are 1, its label is itself.
    """

    def __init__(
        self, dataset: Sequences, dtype: np.dtype[Any], read: Callable[[int], Values]
    ) -> None:
        self._dataset, self._dtype, self._read = dataset, dtype, read

    @property
    def path_prefix(self) -> str:
        """The dataset's name."""
        return self._dataset.path_prefix

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self._dtype

    @property
    def doc_idx(self) -> npt.NDArray[np.int64]:
        """That of the dataset."""
        return self._dataset.doc_idx

    def __len__(self) -> int:
        return len(self._dataset)

    def _at(self, number: int) -> Values:
        return self._read(number)

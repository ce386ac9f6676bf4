"""The arrays of a batch of samples, and how they are made from its tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import Dataset as TorchDataset

    from tokpack.samples.orders import Counts, Numbers, Rows
    from tokpack.samples.settings import Settings

_INT32, _INT64, _FLOAT32 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.float32)
_POOLED = 1 << 13  # tokens; for smaller batches the allocator itself keeps the memory

Sample = dict[str, npt.NDArray[Any]]  # the arrays of a sample, or of a batch, by name


if TYPE_CHECKING:
    MapStyle = TorchDataset[Sample]  # for type checkers: DataLoader expects this type
else:
    MapStyle = object  # so that torch need not be loaded


class Batch(NamedTuple):
    """B samples of S tokens, see GPTDataset.

    Tokens are a view of ``text``; labels are a view of ``label_text``, or of ``text`` without it.
    """

    text: npt.NDArray[np.int64]  # [B, S + 1]
    loss_mask: npt.NDArray[np.float32]  # [B, S]
    position_ids: npt.NDArray[np.int64]  # [B, S]
    cu_seqlens: npt.NDArray[np.int32] | None  # [B, S + 1]
    max_seqlen: npt.NDArray[np.int32] | None  # [B]
    label_text: npt.NDArray[np.int64] | None = None  # [B, S + 1]

    def at(self, place: int | slice) -> Sample:
        """The arrays of the samples at ``place`` by name, as views of the batch."""
        labels = self.text if self.label_text is None else self.label_text
        named: Sample = {
            "tokens": self.text[place, :-1],
            "labels": labels[place, 1:],
            "loss_mask": self.loss_mask[place, ...],
            "position_ids": self.position_ids[place, ...],
        }
        if self.cu_seqlens is not None and self.max_seqlen is not None:
            named["cu_seqlens"] = self.cu_seqlens[place, ...]
            named["max_seqlen"] = self.max_seqlen[place, ...]
        return named


class Assembler:
    """Makes the arrays of batches as ``settings`` say; ``eod`` is the token that ends documents.

    ``joined`` comes from the order: whether the documents of a sample are one running text. Memory
    of batches that are no longer referenced is reused.
    """

    def __init__(self, settings: Settings, eod: int | None, *, joined: bool) -> None:
        cut = settings.reset_attention_mask
        self._seq_length = settings.seq_length
        self._pad = settings.pad_id
        self._boundaries = settings.document_boundaries or cut or not joined
        self._pool = _core.ArrayPool()
        self._rules = _core.Assembly(
            settings.seq_length,
            extra=bool(settings.extra),
            joined=joined,
            boundaries=self._boundaries,
            mask_eod=eod if settings.eod_mask_loss else None,
            reset_at=eod if settings.reset_position_ids else None,
            cut_at=eod if cut else None,
            multiple=settings.pad_to_multiple_of,
        )

    def empty(self, samples: int, *, labels: bool = False) -> Batch:
        """A batch whose values are not set yet; with ``labels`` it has a ``label_text``."""
        length = self._seq_length
        new = np.empty if samples * length < _POOLED else self._pool.empty
        return Batch(
            new((samples, length + 1), _INT64),
            new((samples, length), _FLOAT32),
            new((samples, length), _INT64),
            new((samples, length + 1), _INT32) if self._boundaries else None,
            new((samples,), _INT32) if self._boundaries else None,
            new((samples, length + 1), _INT64) if labels else None,
        )

    def text(self, samples: int) -> npt.NDArray[np.int64]:
        """Memory for values of samples, int64 [samples, S + 1], not set yet."""
        new = np.empty if samples * self._seq_length < _POOLED else self._pool.empty
        return new((samples, self._seq_length + 1), _INT64)

    def fill(self, batch: Batch, rows: Rows, counts: Counts, places: npt.NDArray[np.int64]) -> None:
        """Set all arrays except ``text``, which is filled already, with 0 after the end of a
        sample.

        Sample i has ``counts[i]`` of the rows and is at ``places[i]`` of the batch.
        """
        self._rules.fill(
            batch.text,
            rows,
            counts,
            places,
            batch.loss_mask,
            batch.position_ids,
            batch.cu_seqlens,
            batch.max_seqlen,
        )
        if self._pad is not None:  # only now: as in Megatron, the arrays above see the padding
            padding = batch.text[places] == self._pad
            row, column = np.nonzero(padding)
            batch.text[places[row], column] = 0
            batch.loss_mask[places] *= ~padding[:, 1:]


class SampleDataset(ABC, MapStyle):
    """A map-style dataset of ``_size`` samples that are written into the arrays of a batch."""

    has_labels = False  # whether labels are other than its tokens
    group = 1  # consecutive samples that belong together
    _size: int
    _kind = ""  # for messages, before the number of samples

    @abstractmethod
    def empty(self, samples: int, *, labels: bool = False) -> Batch:
        """The arrays of a batch whose values are not set yet; with ``labels`` also for labels."""

    @abstractmethod
    def fill(self, batch: Batch, numbers: Numbers, places: Numbers | None = None) -> object:
        """Write samples ``numbers`` to ``places`` of a batch, by default one after the other."""

    def __len__(self) -> int:
        """Number of samples."""
        return self._size

    def __getitem__(self, index: SupportsIndex) -> Sample:
        return self.sample(self._number(index))

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Several samples at once, as torch's DataLoader requests them: views of one batch."""
        batch = self.empty(len(indices))
        self.fill(batch, [self._number(index) for index in indices])
        return [batch.at(place) for place in range(len(indices))]

    def sample(self, number: int) -> Sample:
        """Sample ``number`` >= 0, also beyond the length: the order continues, epoch after
        epoch.
        """
        batch = self.empty(1)
        self.fill(batch, [number])
        return batch.at(0)

    def batch(self, numbers: Numbers) -> Sample:
        """Samples, as ``sample`` returns them, stacked: new arrays [B, ...], all made at once."""
        batch = self.empty(len(numbers))
        self.fill(batch, numbers)
        return batch.at(slice(None))

    def _number(self, index: SupportsIndex) -> int:
        if isinstance(index, slice):
            raise TypeError("samples cannot be sliced: use batch(range(...)), which stacks them")
        try:
            number = as_integer(index)
        except TypeError:
            raise TypeError(f"samples are numbered from 0: {index!r} is not a number") from None
        if not -self._size <= number < self._size:
            raise IndexError(f"sample {number} of {self._kind}{self._size}")
        return number % self._size


def attention_mask(cu_seqlens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """A dense mask from ``cu_seqlens`` (int32 [..., S + 1]): bool [..., 1, S, S], S * S bytes each.

    True if token i must not attend to token j, which is later or in another document, as in
    Megatron.
    """
    length = cu_seqlens.shape[-1] - 1
    marks = np.zeros((*cu_seqlens.shape[:-1], length + 1), np.int32)
    np.put_along_axis(marks, cu_seqlens.astype(np.int64), 1, axis=-1)
    document = np.cumsum(marks[..., :length], axis=-1)
    place = np.arange(length)
    mask: npt.NDArray[np.bool_] = document[..., :, None] != document[..., None, :]
    mask |= place[:, None] < place
    return mask[..., None, :, :]


def flat_cu_seqlens(
    cu_seqlens: npt.NDArray[np.int32], size: int | None = None
) -> npt.NDArray[np.int32]:
    """The first tokens of documents in a batch laid end to end, for varlen kernels: int32
    [documents + 1].

    ``cu_seqlens`` int32 [B, S + 1] are those of its samples, each counted from its own beginning;
    no document continues in the next sample. The first is 0, the last B * S. With ``size`` the
    result always has ``size`` + 1 elements, so the documents after the last are empty. UsageError
    if there are more documents.
    """
    samples, length = cu_seqlens.shape[0], cu_seqlens.shape[1] - 1
    sample, place = np.nonzero(cu_seqlens < length)
    begins = sample * length + cu_seqlens[sample, place]
    if size is None:
        size = len(begins)
    if len(begins) > size:
        raise UsageError(f"size is {size}, but the batch has {len(begins)} documents")
    flat = np.full(size + 1, samples * length, np.int32)
    flat[: len(begins)] = begins
    return flat


@lru_cache
def first_places(count: int) -> npt.NDArray[np.int64]:
    """The places 0 to count - 1 of a batch, int64 [count], read-only."""
    places = np.arange(count, dtype=np.int64)
    places.flags.writeable = False
    return places

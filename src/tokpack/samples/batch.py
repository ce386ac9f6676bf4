"""The arrays of a batch of samples, made to be written into."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack import _core

if TYPE_CHECKING:
    from tokpack.samples.iterate import Sample


_INT32, _INT64, _FLOAT32 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.float32)
_POOLED = 1 << 13  # tokens of a batch; less memory than this the allocator keeps itself


class Batch(NamedTuple):
    """B samples of S tokens, see GPTDataset; tokens are views of ``text``.

    Labels are views of ``label_text``, without it of ``text``.
    """

    text: npt.NDArray[np.int64]  # [B, S + 1]
    loss_mask: npt.NDArray[np.float32]  # [B, S]
    position_ids: npt.NDArray[np.int64]  # [B, S]
    cu_seqlens: npt.NDArray[np.int32] | None  # [B, S + 1]
    max_seqlen: npt.NDArray[np.int32] | None  # [B]
    label_text: npt.NDArray[np.int64] | None = None  # [B, S + 1]

    def arrays(self) -> Sample:
        """What a trainer gets: all arrays by name, [B, ...]."""
        labels = self.text if self.label_text is None else self.label_text
        return self._named(self.text[:, :-1], labels[:, 1:], slice(None))

    def sample(self, place: int) -> Sample:
        """The arrays of one sample, views of the batch."""
        labels = self.text if self.label_text is None else self.label_text
        return self._named(self.text[place, :-1], labels[place, 1:], (place, ...))

    def _named(self, tokens: npt.NDArray[Any], labels: npt.NDArray[Any], place: Any) -> Sample:
        named: Sample = {
            "tokens": tokens,
            "labels": labels,
            "loss_mask": self.loss_mask[place],
            "position_ids": self.position_ids[place],
        }
        if self.cu_seqlens is not None and self.max_seqlen is not None:
            named["cu_seqlens"] = self.cu_seqlens[place]
            named["max_seqlen"] = self.max_seqlen[place]
        return named


class Batches:
    """Makes batches for samples of ``seq_length`` tokens.

    They have ``cu_seqlens`` and ``max_seqlen`` if ``boundaries``. The memory of a batch that nobody
    holds any more is used again.
    """

    def __init__(self, seq_length: int, *, boundaries: bool) -> None:
        self._seq_length = seq_length
        self._boundaries = boundaries
        self._pool = _core.ArrayPool()

    def empty(self, samples: int, *, labels: bool = False) -> Batch:
        """A batch without values, with ``label_text`` if ``labels``."""
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


def attention_mask(cu_seqlens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """A dense mask from ``cu_seqlens`` (int32 [..., S + 1]): bool [..., 1, S, S], S * S bytes each.

    True where token i must not look at token j, because it comes later or is of another document,
    as in Megatron.
    """
    length = cu_seqlens.shape[-1] - 1
    marks = np.zeros((*cu_seqlens.shape[:-1], length + 1), np.int32)
    np.put_along_axis(marks, cu_seqlens.astype(np.int64), 1, axis=-1)
    document = np.cumsum(marks[..., :length], axis=-1)
    place = np.arange(length)
    mask: npt.NDArray[np.bool_] = document[..., :, None] != document[..., None, :]
    mask |= place[:, None] < place
    return mask[..., None, :, :]


@lru_cache
def first_places(count: int) -> npt.NDArray[np.int64]:
    """0 to count - 1, read-only."""
    places = np.arange(count, dtype=np.int64)
    places.flags.writeable = False
    return places

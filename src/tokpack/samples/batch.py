"""The arrays of a batch of samples."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Sample = dict[str, npt.NDArray[Any]]  # the arrays of a sample, or of a batch, by name


class Batch(NamedTuple):
    """B samples of S tokens, see GPTDataset.

    Tokens are a view of ``text``; labels are one of ``label_text``, or without it of ``text``.
    """

    text: npt.NDArray[np.int64]  # [B, S + 1]
    loss_mask: npt.NDArray[np.float32]  # [B, S]
    position_ids: npt.NDArray[np.int64]  # [B, S]
    cu_seqlens: npt.NDArray[np.int32] | None  # [B, S + 1]
    max_seqlen: npt.NDArray[np.int32] | None  # [B]
    label_text: npt.NDArray[np.int64] | None = None  # [B, S + 1]

    def arrays(self) -> Sample:
        """What a trainer gets: all arrays by name, [B, ...]."""
        return self._at(slice(None))

    def sample(self, place: int) -> Sample:
        """The arrays of one sample, views of the batch."""
        return self._at(place)

    def _at(self, place: int | slice) -> Sample:
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
    """The places 0 to count - 1 of a batch, int64 [count], read-only."""
    places = np.arange(count, dtype=np.int64)
    places.flags.writeable = False
    return places

"""From the tokens of a sample to the arrays of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokpack.samples import masks

if TYPE_CHECKING:
    from tokpack.samples.iterate import Sample
    from tokpack.samples.settings import Settings


class Assembler:
    """Makes samples as ``settings`` say; ``eod`` is the token they look for, if they do.

    ``joined`` is that of the order: whether a sample's pieces are one running text.
    """

    def __init__(self, settings: Settings, eod: int | None, *, joined: bool) -> None:
        self._length = settings.seq_length
        self._extra = settings.extra
        self._joined = joined
        self._boundaries = settings.document_boundaries or not joined
        self._mask_eod = eod if settings.eod_mask_loss else None
        self._reset_at = eod if settings.reset_position_ids and not self._boundaries else None
        self._positions = np.arange(settings.seq_length, dtype=np.int64)

    def sample(self, text: npt.NDArray[np.int64], parts: list[int]) -> Sample:
        """The arrays of one sample.

        ``text`` int64 [S + 1] are its tokens, 0 where there are none; ``parts`` how many of them
        each piece gave.
        """
        tokens, labels = text[:-1], text[1:]
        filled = sum(parts)
        loss_mask = np.ones(self._length, np.float32)
        loss_mask[max(filled - 1, 0) :] = 0.0  # labels that are not there
        if not self._joined:
            ends = np.cumsum(parts, dtype=np.int64)
            loss_mask[ends[(ends > 0) & (ends <= self._length)] - 1] = 0.0
        if self._mask_eod is not None:
            masks.mask_eod(loss_mask, tokens[:filled], self._mask_eod)
        sample: Sample = {"tokens": tokens, "labels": labels, "loss_mask": loss_mask}
        if self._boundaries:
            return sample | self._documents(parts)
        if self._reset_at is not None:
            starts = masks.document_starts(tokens[:filled], self._reset_at, self._length)
            sample["position_ids"] = masks.restart(starts, self._length)
        else:
            sample["position_ids"] = self._positions.copy()
        return sample

    def _documents(self, parts: list[int]) -> Sample:
        length = self._length
        edges = masks.cumulative_lengths([p for p in parts if p], length, self._extra)
        cu_seqlens = np.full(length + 1, length, np.int32)
        cu_seqlens[: len(edges)] = edges
        return {
            "position_ids": masks.restart(edges[1:-1].astype(np.int64), length),
            "cu_seqlens": cu_seqlens,
            "max_seqlen": np.array(np.diff(edges).max(), np.int32),
        }

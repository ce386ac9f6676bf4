"""From the tokens of samples to the arrays of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokpack import _core
from tokpack.samples.batch import Batch

if TYPE_CHECKING:
    import numpy.typing as npt

    from tokpack.samples.orders.rows import Counts, Rows
    from tokpack.samples.settings import Settings

_INT32, _INT64, _FLOAT32 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.float32)
_POOLED = 1 << 13  # tokens of a batch; the memory of smaller ones the allocator keeps itself


class Assembler:
    """Makes the arrays of batches as ``settings`` say; ``eod`` is the token that ends documents.

    ``joined`` is that of the order: whether the documents of a sample are one running text. The
    memory of a batch that nobody holds any more is used again.
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
        )

    def empty(self, samples: int, *, labels: bool = False) -> Batch:
        """A batch whose values are not set yet, with ``label_text`` if ``labels``."""
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

    def fill(self, batch: Batch, rows: Rows, counts: Counts, places: npt.NDArray[np.int64]) -> None:
        """Set all arrays but ``text``, which is filled already and 0 behind the end of a sample.

        Sample i has ``counts[i]`` of the rows and stands at ``places[i]`` of the batch.
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
        if self._pad is not None:  # what is read above is the text with it, as in Megatron
            padding = batch.text[places] == self._pad
            row, column = np.nonzero(padding)
            batch.text[places[row], column] = 0
            batch.loss_mask[places] *= ~padding[:, 1:]

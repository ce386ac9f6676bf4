"""From the tokens of samples to the arrays of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack import _core
from tokpack.samples.batch import Batches

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tokpack.samples.batch import Batch
    from tokpack.samples.orders.rows import Counts, Rows
    from tokpack.samples.settings import Settings


class Assembler:
    """Makes samples as ``settings`` say; ``eod`` is the token they look for, if they do.

    ``joined`` is that of the order: whether a sample's pieces are one running text.
    """

    def __init__(self, settings: Settings, eod: int | None, *, joined: bool) -> None:
        cut = settings.reset_attention_mask
        self.boundaries = settings.document_boundaries or cut or not joined
        self._batches = Batches(settings.seq_length, boundaries=self.boundaries)
        self._rules = _core.Assembly(
            settings.seq_length,
            extra=bool(settings.extra),
            joined=joined,
            boundaries=self.boundaries,
            mask_eod=eod if settings.eod_mask_loss else None,
            reset_at=eod if settings.reset_position_ids else None,
            cut_at=eod if cut else None,
        )

    def empty(self, samples: int, *, labels: bool = False) -> Batch:
        """A batch to be filled; with labels of their own if ``labels``."""
        return self._batches.empty(samples, labels=labels)

    def fill(self, batch: Batch, rows: Rows, counts: Counts, places: npt.NDArray[np.int64]) -> None:
        """Make everything but the text, which is there, 0 where it ends early.

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

"""Loss masks, position ids and document boundaries, as Megatron makes them: slow and plain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


def mask_eod(loss_mask: npt.NDArray[np.float32], tokens: Ids, eod: int) -> None:
    """Set the loss mask to 0 where the input token is ``eod``.

    So the end of a document is learned, the first token of the next one is not.
    """
    loss_mask[: len(tokens)][tokens == eod] = 0.0


def restart(starts: npt.NDArray[np.int64], length: int) -> Ids:
    """Positions int64 [length] that begin again with 0 at each of ``starts`` (ascending)."""
    edges = np.concatenate(([0], starts, [length]))
    positions: Ids = np.arange(length, dtype=np.int64)
    positions -= np.repeat(edges[:-1], np.diff(edges))
    return positions


def document_starts(tokens: Ids, eod: int, length: int) -> npt.NDArray[np.int64]:
    """Where documents begin in a sample of ``length`` tokens: behind every ``eod``."""
    starts = np.flatnonzero(tokens == eod) + 1
    return starts[starts < length]


def cumulative_lengths(parts: list[int], seq_length: int, extra: int) -> npt.NDArray[np.int32]:
    """cu_seqlens int32 [parts + 1] of the documents in ``seq_length`` positions.

    ``parts`` are the tokens of each, among them the ``extra`` that only is the last label. Padding
    belongs to the last document, which is none where it has no input token.
    """
    starts = np.cumsum([0, *parts[:-1]], dtype=np.int64)
    inside = starts[: 1 + int(np.sum(starts[1:] < sum(parts) - extra))]
    return np.append(inside, seq_length).astype(np.int32)

"""A slow, plain twin of gathering and assembling samples: lists and numpy, one sample at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from support import masks_twin as masks

if TYPE_CHECKING:
    from tokpack import GPTDataset

    Sample = dict[str, np.ndarray[Any, Any]]


def twin_sample(
    dataset: GPTDataset,
    sequences: list[list[int]],
    number: int,
    *,
    add_extra_token: bool = True,
    eod_id: int | None = None,
    eod_mask_loss: bool = False,
    reset_position_ids: bool = False,
    reset_attention_mask: bool = False,
    document_boundaries: bool = False,
    **_: Any,
) -> Sample:
    """Sample ``number`` of a dataset whose tokens are ``sequences``, from the rows of its order."""
    rows = dataset._order.locate_many([number])[0].tolist()
    parts = [row[2] for row in rows]
    length, filled = dataset.seq_length, sum(parts)
    text = np.zeros(length + 1, np.int64)
    text[:filled] = [t for n, first, k in rows for t in sequences[n][first : first + k]]
    tokens = text[:-1]
    loss_mask = np.ones(length, np.float32)
    loss_mask[filled - 1 :] = 0.0
    if eod_mask_loss:
        masks.mask_eod(loss_mask, tokens[:filled], eod_id)
    sample = {"tokens": tokens, "labels": text[1:], "loss_mask": loss_mask}
    if document_boundaries:
        edges = masks.cumulative_lengths([p for p in parts if p], length, int(add_extra_token))
        padding = np.full(length + 1 - len(edges), length, np.int32)
        return sample | {
            "position_ids": masks.restart(edges[1:-1].astype(np.int64), length),
            "cu_seqlens": np.concatenate([edges, padding]),
            "max_seqlen": np.array(np.diff(edges).max(), np.int32),
        }
    starts = np.zeros(0, np.int64)
    behind = masks.document_starts(tokens[:filled], eod_id, length)
    if reset_position_ids:
        starts = behind
    sample["position_ids"] = masks.restart(starts, length)
    if reset_attention_mask:
        edges = np.concatenate([[0], behind, np.full(length - len(behind), length)])
        sample["cu_seqlens"] = edges.astype(np.int32)
        sample["max_seqlen"] = np.array(np.diff(edges).max(), np.int32)
    return sample


def same(one: Sample, other: Sample) -> bool:
    """Whether two samples, or batches, have equal arrays of equal types."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and np.array_equal(one[name], other[name])
        for name in one
    )


def stacked(samples: list[Sample]) -> Sample:
    """A batch of samples."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}

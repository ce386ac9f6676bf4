"""The datasets and documents in a sample, and the samples with a document."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tokpack.samples.blend import BlendedDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.samples.batch import Sample
    from tokpack.samples.gpt import GPTDataset


@dataclass(frozen=True)
class SamplePiece:
    """Consecutive tokens of a sample that come from one sequence.

    The sample's tokens ``at`` to ``at + tokens - 1`` are those of ``sequence`` from token ``first``
    on, which is token ``offset`` of ``document``. If FIM has rearranged the piece, they are in
    another order and may be more or fewer.
    """

    document: int
    offset: int
    sequence: int
    first: int
    at: int
    tokens: int


@dataclass(frozen=True)
class SampleView:
    """Sample ``number`` of a blend, which is ``dataset_sample`` of one of its datasets.

    ``epoch`` is the dataset's; None in the orders of other programs, which mix epochs. ``arrays``
    are what a trainer gets. ``pieces`` are in order; padding follows. ``is_masked``: the dataset
    says which of its tokens are trained.
    """

    number: int
    dataset: MMapIndexedDataset
    dataset_sample: int
    epoch: int | None
    pieces: list[SamplePiece]
    arrays: Sample = field(repr=False)
    is_masked: bool = False

    @property
    def filled(self) -> int:
        """The number of its tokens that come from documents; padding comes after them."""
        return max((piece.at + piece.tokens for piece in self.pieces), default=0)

    def ids(self, piece: SamplePiece) -> list[int]:
        """The tokens of a piece."""
        ids: list[int] = self.arrays["tokens"][piece.at : piece.at + piece.tokens].tolist()
        return ids

    def trained(self, piece: SamplePiece) -> list[range]:
        """The tokens of a piece that are labels and count, as ranges of places in the piece."""
        counts = np.zeros(piece.tokens + 1, np.bool_)  # the last value ends a range
        first = max(piece.at, 1)  # the first token of a sample is not a label
        loss = self.arrays["loss_mask"][first - 1 : piece.at + piece.tokens - 1]
        counts[first - piece.at : piece.tokens] = loss != 0
        edges = np.flatnonzero(np.diff(counts, prepend=False)).tolist()
        return [range(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True)]

    @property
    def boundaries(self) -> list[int] | None:
        """The places where attention restarts, from 0 to the length; None if it does not."""
        edges = self.arrays.get("cu_seqlens")
        return None if edges is None else np.unique(edges).tolist()

    @property
    def no_loss(self) -> list[range]:
        """The positions without a loss, as ranges."""
        missing = np.flatnonzero(self.arrays["loss_mask"] == 0)
        cuts = [0, *(np.flatnonzero(np.diff(missing) > 1) + 1).tolist(), len(missing)]
        return [
            range(int(missing[begin]), int(missing[end - 1]) + 1)
            for begin, end in pairwise(cuts)
            if begin < end
        ]


def look(samples: GPTDataset | BlendedDataset, number: int) -> SampleView:
    """The view of sample ``number``. IndexError if there is none."""
    dataset, index = samples, number
    while isinstance(dataset, BlendedDataset):
        place, index = dataset.locate(index)
        dataset = dataset.datasets[place]
    arrays, rows = dataset.parts(index)
    epoch = index // dataset.samples_per_epoch if dataset.limit is None else None
    pieces, at = [], 0
    for sequence, first, count in rows.tolist():
        at += -at % dataset.multiple
        tokens = min(count, dataset.seq_length - at)  # without the last label
        if tokens > 0:
            document = bisect_right(dataset.dataset.doc_idx, sequence) - 1
            begin = int(dataset.dataset.doc_idx[document])
            offset = first + int(np.sum(dataset.dataset.sizes[begin:sequence], dtype=np.int64))
            pieces.append(SamplePiece(document, offset, sequence, first, at, tokens))
        at += count
    return SampleView(
        number, dataset.dataset, index, epoch, pieces, arrays, is_masked=dataset.is_masked
    )


def find(
    samples: GPTDataset | BlendedDataset, prefix: str, document: int, size: int
) -> Iterator[int]:
    """The samples below ``size`` with tokens of a document of the dataset ``prefix``, in order.

    They include samples with only their last label from it. GPTDataset.find says what this costs.
    """
    if isinstance(samples, BlendedDataset):
        members = enumerate(zip(samples.datasets, samples.counts(size), strict=True))
        return heapq.merge(
            *(
                map(partial(samples.position, place), find(member, prefix, document, count))
                for place, (member, count) in members
            )
        )
    if samples.path_prefix != prefix:
        return iter(())
    first, stop = samples.dataset.doc_idx[document : document + 2].tolist()
    return samples.find(range(first, stop), size)

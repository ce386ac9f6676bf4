"""What a split leaves of a dataset for one purpose, counted."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.samples.split_string import Range

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Portion:
    """What one dataset has for one purpose: its sequences ``begin`` to ``end``."""

    dataset: MMapIndexedDataset = field(repr=False)
    begin: int
    end: int
    documents: int
    tokens: int
    labels: MMapIndexedDataset | None = None  # with a label for each token
    _pieces: dict[int, int] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def prefix(self) -> str:
        """The name of the dataset."""
        return self.dataset.path_prefix

    def pieces(self, seq_length: int) -> int:
        """How many samples there are where each has one sequence, and long ones are cut."""
        if seq_length in self._pieces:
            return self._pieces[seq_length]
        sizes, total = self.dataset.sizes, 0
        for begin in range(self.begin, self.end, _CHUNK):
            part = sizes[begin : min(begin + _CHUNK, self.end)].astype(np.int64)
            total += int(np.sum(-(-np.maximum(part - 1, 0) // seq_length)))
        self._pieces[seq_length] = total
        return total


def portion_of(
    dataset: MMapIndexedDataset, found: Range | None, labels: MMapIndexedDataset | None
) -> Portion:
    """The sequences ``found`` [begin, end) of a dataset, None for no sequence at all."""
    begin, end = found or (0, 0)
    documents = 0
    if begin < end:
        # Not by numpy's searchsorted, which copies the whole of an index that is not aligned.
        entries, entry = range(1, dataset.documents + 1), dataset.doc_idx.item
        first = bisect_right(entries, begin, key=entry)
        documents = bisect_right(entries, end - 1, key=entry) + 1 - first
    return Portion(dataset, begin, end, documents, dataset.tokens_in(begin, end), labels)

"""Labels from a second dataset, token by token beside the first: NeoX's label datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokpack.errors import UsageError
from tokpack.indexed import MMapIndexedDataset
from tokpack.samples.gather import Gatherer

if TYPE_CHECKING:
    import os

    from tokpack.samples.batch import Batch
    from tokpack.samples.orders.rows import Counts, Rows

_CHUNK = 1 << 20


class Labels:
    """The labels of ``tokens``: ``source`` has the same sequences with the same lengths.

    Label i of a sequence stands for its token i, and a model that has read tokens 0 to i - 1
    predicts it: the dataset is not shifted. A label below 0 (-100 by custom) does not count.
    UsageError where the datasets do not go together.
    """

    def __init__(
        self, source: MMapIndexedDataset | str | os.PathLike[str], tokens: MMapIndexedDataset
    ) -> None:
        if not isinstance(source, MMapIndexedDataset):
            source = MMapIndexedDataset(source)
        check_labels(source, tokens)
        self.dataset = source
        self._gatherer = Gatherer(source)

    def ask(self, rows: Rows) -> None:
        """Begin to read the labels of rows from the store, if they lie on one, for ``fill``."""
        self._gatherer.ask(rows)

    def fill(self, batch: Batch, rows: Rows, counts: Counts, places: npt.NDArray[np.int64]) -> None:
        """Write the labels of samples, and set the loss mask to 0 where a label does not count.

        Sample i has ``counts[i]`` of the rows and stands at ``places[i]`` of the batch.
        """
        assert batch.label_text is not None
        self._gatherer.fill(batch.label_text, rows, counts, places)
        labels = batch.label_text[places]
        missing = labels < 0
        labels[missing] = 0
        batch.label_text[places] = labels
        loss_mask = batch.loss_mask[places]
        loss_mask[missing[:, 1:]] = 0.0
        batch.loss_mask[places] = loss_mask


def check_labels(labels: MMapIndexedDataset, tokens: MMapIndexedDataset) -> None:
    """UsageError where ``labels`` has not one signed label for each of ``tokens``."""
    names = f"{labels.path_prefix} has labels for {tokens.path_prefix}"
    if np.dtype(labels.dtype).kind == "u" and labels.path_prefix != tokens.path_prefix:
        raise UsageError(
            f"{names}, but its dtype is {np.dtype(labels.dtype).name}: -100, a label that does "
            "not count, needs a signed one such as int32"
        )
    if len(labels.sizes) != len(tokens.sizes):
        raise UsageError(
            f"{names}, but it has {len(labels.sizes)} sequences and not {len(tokens.sizes)}"
        )
    for start in range(0, len(tokens.sizes), _CHUNK):
        end = start + _CHUNK
        differ = np.flatnonzero(labels.sizes[start:end] != tokens.sizes[start:end])
        if len(differ):
            first = start + int(differ[0])
            raise UsageError(
                f"{names}, but its sequence {first} has {labels.sizes[first]} of them for "
                f"{tokens.sizes[first]} tokens"
            )

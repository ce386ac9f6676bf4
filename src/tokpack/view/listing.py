"""Which documents of a dataset a page lists: those that an expression chooses, in some order."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import UsageError
from tokpack.indexed.lengths import document_lengths
from tokpack.indexed.selection import selection_dtype
from tokpack.indexed.table import import_parquet

if TYPE_CHECKING:
    import numpy.typing as npt

    from tokpack.indexed import MMapIndexedDataset

TOKENS = "tokens"  # what every dataset can be sorted by


class Listing:
    """The documents of a dataset, filtered and sorted; the last answers are kept."""

    def __init__(self, dataset: MMapIndexedDataset) -> None:
        self._dataset = dataset
        self._chosen = lru_cache(1)(self._evaluate)
        self._sorted = lru_cache(1)(self._sort)

    def numbers(self, where: str, sort: str) -> range | npt.NDArray[Any]:
        """The documents that ``where`` chooses, all for "", as ``select`` has it.

        ``sort`` is a column of the table, or ``tokens``; with - before it the highest come first.
        "" is as they are. UsageError for what cannot be evaluated or sorted by, InputError without
        a table.
        """
        if sort:
            return self._sorted(where, sort)
        return self._chosen(where) if where else range(self._dataset.documents)

    def _evaluate(self, where: str) -> npt.NDArray[Any]:
        from tokpack.documents.base import Base  # a room that only filters need
        from tokpack.documents.expressions import SelectRequest, evaluate

        base, count = Base([self._dataset]), self._dataset.documents
        chosen = evaluate(SelectRequest(where, None, (), ()), base).chosen
        numbers = np.flatnonzero(chosen[base.numbers(0, np.arange(count))])
        return numbers.astype(selection_dtype(count))

    def _sort(self, where: str, sort: str) -> npt.NDArray[Any]:
        column, descending = sort.removeprefix("-"), sort.startswith("-")
        chosen: Any = self._chosen(where) if where else slice(None)
        if column == TOKENS:
            values = document_lengths(self._dataset.sizes, self._dataset.doc_idx)[chosen]
            order = np.argsort(~values if descending else values, kind="stable")
        else:
            order = _order(self._dataset.table([column])[column], chosen, descending)
        numbers: npt.NDArray[Any] = chosen[order] if where else order
        return numbers.astype(selection_dtype(self._dataset.documents))


def _order(values: Any, chosen: Any, descending: bool) -> npt.NDArray[Any]:
    """Places in an Arrow column, by its values; null comes last."""
    arrow = import_parquet()
    from pyarrow import compute

    if not isinstance(chosen, slice):
        values = values.take(arrow.array(chosen))
    way = "descending" if descending else "ascending"
    try:
        order: npt.NDArray[Any] = compute.sort_indices(values, sort_keys=[("", way)]).to_numpy()
    except (NotImplementedError, ValueError) as error:  # as Arrow's errors are
        raise UsageError(f"documents cannot be sorted by {values.type}: {error}") from None
    return order

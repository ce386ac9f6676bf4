"""Columns of documents beside their texts: values of records, aligned with the documents.

A column is the JSON texts of its values where they lie in a block of lines, a list of Python
values, or a pyarrow Array; whatever is cheapest where it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass
class JsonValues:
    """JSON texts of a column.

    ``data`` are bytes that have them, ``spans`` int64 [n, 2] their begins and ends in it. One
    without a byte is no value: null.
    """

    data: Any
    spans: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.spans)

    def texts(self) -> list[bytes]:
        """The text of each value, ``null`` for none."""
        view = memoryview(self.data)
        return [bytes(view[begin:end]) or b"null" for begin, end in self.spans.tolist()]


Values = JsonValues | list[Any] | Any  # the last: a pyarrow Array


def select_values(values: Values, chosen: npt.NDArray[np.bool_]) -> Values:
    """The values of the documents that are chosen, bool [n]."""
    if isinstance(values, JsonValues):
        return JsonValues(values.data, values.spans[chosen])
    if isinstance(values, list):
        return [
            value for value, is_chosen in zip(values, chosen.tolist(), strict=True) if is_chosen
        ]
    import pyarrow

    return values.filter(pyarrow.array(chosen))

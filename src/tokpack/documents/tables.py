"""Tables about documents that are no datasets' own: which copies there are, what was matched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.files.durable import cannot_write
from tokpack.files.outputs import Kind
from tokpack.indexed.table import import_parquet, is_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.indexed.new_files import NewFiles

_MARK = b"tokpack.about_documents"  # a key of the footer's metadata
_ROWS = 1 << 16


def is_about_documents(path: str) -> bool:
    """Whether a file is such a table: no other is replaced by one."""
    return is_table(path, _MARK)


BESIDE_VIEW = Kind("a table of tokpack", is_about_documents, beside=True)
NAMED_TABLE = Kind("a table of tokpack", is_about_documents)


class NewTable:
    """A parquet file in the making, of columns of numpy arrays; a context.

    ``schema`` has of each column its Arrow type; a dictionary's values are in ``names``, and its
    arrays have indices of these. ``made_by`` is kept in the footer. Raises OutputError.
    """

    def __init__(
        self,
        path: str,
        files: NewFiles,
        schema: Mapping[str, Any],
        made_by: Mapping[str, Any],
        names: Mapping[str, Sequence[str]],
    ) -> None:
        self._arrow = import_parquet()
        self._path, self._names = path, names
        metadata = {_MARK: json.dumps(made_by).encode()}
        self._schema = self._arrow.schema(list(schema.items()), metadata=metadata)
        self._file = files.create(path)
        with cannot_write(path):
            self._writer = self._arrow.parquet.ParquetWriter(self._file, self._schema)

    def append(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append rows, a column for each of the schema, in its order."""
        count = len(next(iter(columns.values())))
        for begin in range(0, count, _ROWS):
            arrays = [
                self._array(name, np.ascontiguousarray(values[begin : begin + _ROWS]))
                for name, values in columns.items()
            ]
            batch = self._arrow.RecordBatch.from_arrays(arrays, schema=self._schema)
            with cannot_write(self._path):
                self._writer.write_batch(batch)

    def close(self) -> None:
        """Write the footer."""
        with cannot_write(self._path):
            self._writer.close()

    def _array(self, name: str, values: npt.NDArray[Any]) -> Any:
        kind = self._schema.field(name).type
        if name in self._names:
            indices = self._arrow.array(values.astype(np.int32))
            texts = self._arrow.array(list(self._names[name]), self._arrow.string())
            return self._arrow.DictionaryArray.from_arrays(indices, texts)
        return self._arrow.array(values, kind)

"""``where``: which records are kept, by an expression that duckdb evaluates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import InputError, UsageError, option
from tokpack.sources.rows import nested
from tokpack.sources.sql import check_boolean, connect_closed, first_line, listed, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


class _Records:
    """The object that duckdb knows as a table: a prepared query reads it anew each time."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows that it has now."""
        import pyarrow

        reader = pyarrow.RecordBatchReader.from_batches(self.rows.schema, [self.rows])
        return reader.__arrow_c_stream__(requested_schema)


class Where:
    """Evaluates an expression on records."""

    def __init__(self, text: str) -> None:
        self._text = text
        expression = parse(text)
        self._paths, self._counts_nan = expression.columns, not expression.asks_nan
        self._connection: Any = None
        self._records = _Records(None)
        self._schema: Any = None

    def kept(self, columns: Any) -> tuple[npt.NDArray[np.bool_], dict[int, str]]:
        """Which rows of a RecordBatch are kept, bool [n]; why it fails for others, by index.

        ``columns`` are named as ``columns_of`` says. NULL is not kept. UsageError where the
        expression does not fit the columns.
        """
        import duckdb

        columns = nested(columns, self._paths)
        if self._schema is None or not self._schema.equals(columns.schema):
            self._prepare(columns)
        try:
            return self._evaluated(columns), {}
        except duckdb.Error:
            # Which of them it is, duckdb does not tell.
            kept, errors = np.zeros(columns.num_rows, np.bool_), {}
            for begin, end in self._halves(columns, 0, columns.num_rows):
                try:
                    kept[begin:end] = self._evaluated(columns.slice(begin, end - begin))
                except duckdb.Error as error:
                    errors[begin] = f"where: {first_line(error)}"
            return kept, errors

    def nans(self, columns: Any) -> int:
        """How many rows have NaN in a column, where the expression does not ask for it."""
        from pyarrow import types

        if not self._counts_nan:
            return 0
        has_nan = np.zeros(columns.num_rows, np.bool_)
        for column in columns.columns:
            if types.is_floating(column.type):
                has_nan |= column.is_nan().fill_null(False).to_numpy(zero_copy_only=False)
        return int(np.count_nonzero(has_nan))

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = self._schema = None

    def _prepare(self, columns: Any) -> None:
        import duckdb

        self.close()
        self._connection = connect_closed()
        self._records.rows = columns.slice(0, 0)
        self._connection.register("records", self._records)
        try:
            query = f"SELECT ({self._text}\n) AS kept FROM records"
            self._connection.execute(f"PREPARE choose AS {query}")
            self._connection.execute("EXECUTE choose")
            kind = str(self._connection.description[0][1])
            self._connection.fetchall()
        except duckdb.Error as error:
            self.close()
            raise UsageError(
                f"{option('where')} {self._text!r}: {first_line(error)}; the columns are "
                f"{listed({field.name: field.type for field in columns.schema})}"
            ) from None
        check_boolean(kind, f"{option('where')} {self._text!r}")
        self._schema = columns.schema

    def _evaluated(self, columns: Any) -> npt.NDArray[np.bool_]:
        self._records.rows = columns
        answer = self._connection.execute("EXECUTE choose").fetchnumpy()["kept"]
        kept = np.ma.filled(answer, fill_value=False).astype(np.bool_)
        if len(kept) != columns.num_rows:
            raise InputError(f"{option('where')} {self._text!r} gives no value for each record")
        return kept

    def _halves(self, columns: Any, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows that can be evaluated together, or are one row."""
        import duckdb

        middle = (begin + end) // 2
        for first, last in ((begin, middle), (middle, end)):
            if last - first < 2:
                yield from [(first, last)] if last > first else []
                continue
            try:
                self._evaluated(columns.slice(first, last - first))
                yield first, last
            except duckdb.Error:
                yield from self._halves(columns, first, last)

"""What expressions say of the documents of datasets, evaluated by duckdb on their tables."""

from __future__ import annotations

import logging
import re
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.documents.joined import (
    HIDDEN,
    INTEGERS,
    MATCH,
    NO_FOLDERS,
    JoinedTable,
    file_literal,
)
from tokpack.documents.unite import nulls_of_tables, with_types
from tokpack.errors import UsageError, option
from tokpack.indexed.table import table_paths
from tokpack.quantities import counted
from tokpack.sources.sql import (
    NAN,
    check_boolean,
    columns_there,
    connect,
    listed,
    literal,
    parse,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.documents.base import Base

_log = logging.getLogger(__name__)
_FLOATS = ("DOUBLE", "FLOAT")
_BATCH = 1 << 18  # rows that come at once
_MOST_TIMES = 1 << 16  # one document in a view; more is a mistake
_NUMBER = f'"{HIDDEN}number"'
_UNKNOWN = re.compile(r'Referenced column "(.+)" not found')
_SHORT = re.compile(r"\s*(\d+)\s+if\s+(.+)", re.DOTALL | re.IGNORECASE)


class SelectRequest(NamedTuple):
    """What is asked of the documents: expressions in SQL, and a table to join by its keys."""

    where: str | None
    repeat: str | None
    join: Sequence[str]
    keys: Sequence[tuple[str, str]]  # columns of the documents, and of the joined table
    table: Any = None  # one of Arrow, in the place of files to join


class SelectResult(NamedTuple):
    """Which documents of the base are chosen, bool [documents], and how often each of them comes.

    ``times`` is uint16 [documents], None where each comes once. ``unmatched`` is how many documents
    have no row in the joined table, None without one.
    """

    chosen: npt.NDArray[np.bool_]
    times: npt.NDArray[np.uint16] | None
    unmatched: int | None


def evaluate(request: SelectRequest, base: Base) -> SelectResult:
    """Evaluate expressions on the tables of the documents of all datasets.

    UsageError for an expression that cannot be evaluated, InputError where a table is missing or a
    join matches nothing or several rows, FormatError where a table is of another dataset.
    """
    if request.where is not None:
        parse(request.where)  # refuses what is no function of the document alone, as encode does
    if (repeat := repeat_expression(request.repeat)) is not None:
        parse(repeat, option("repeat") + (f" {request.repeat!r}" if repeat.strip() else ""))
    tables = [path for record in base.records for path in table_paths(record.prefix)]
    named = dict.fromkeys(_roots(repeat), "repeat") | {here: "on" for here, _ in request.keys}
    named |= dict.fromkeys(_roots(request.where), "where")
    nulls = nulls_of_tables(tables, [record.prefix for record in base.records], named)
    with _connect() as connection:
        query = _Query(connection, request, tables, base.starts.tolist(), nulls)
        result = query.run(int(base.starts[-1]))
        compared = [one for one in (request.where, repeat) if one and not parse(one).asks_nan]
        query.warn_of_nan({name for one in compared for name in _roots(one)})
        return result


class _Query:
    """One query over all documents, and what is wrong with it."""

    def __init__(
        self,
        connection: Any,
        request: SelectRequest,
        tables: Sequence[str],
        starts: Sequence[int],
        nulls: Sequence[dict[str, str]],
    ) -> None:
        self._connection, self._request = connection, request
        rows = " UNION ALL BY NAME ".join(
            f"SELECT {start} + file_row_number AS {_NUMBER}, * EXCLUDE (file_row_number) "
            f"{with_types(null)} "
            f"FROM read_parquet({file_literal(path)}, file_row_number=true{NO_FOLDERS})"
            for path, start, null in zip(tables, starts, nulls, strict=False)
        )
        connection.execute(f"CREATE VIEW docs AS {rows}")
        self._joined = JoinedTable(connection, request) if request.join else None

    def run(self, documents: int) -> SelectResult:
        """Go through all documents once."""
        request = self._request
        where = f"coalesce(({request.where}\n), false)" if request.where else "true"
        repeat = repeat_expression(request.repeat)
        times = f"({repeat}\n)" if repeat else "1"
        self._check(request.where, times)
        joined = self._joined
        chosen = f"SELECT {_NUMBER} AS number"
        chosen += f", {times} AS times"
        if joined is not None:  # rows are counted before any is dropped
            query = f"{chosen}, {where} AS chosen, {MATCH} IS NOT NULL AS matched FROM {self._from}"
        else:
            query = f"{chosen} FROM docs WHERE {where}"
        result = np.zeros(documents, np.bool_)
        repeats = np.zeros(documents, np.uint16) if repeat else None
        rows = matched = 0
        for batch in self._batches(query):
            numbers, values = batch["number"].to_numpy(), batch["times"]
            if joined is not None:
                rows += len(numbers)  # each document has one at least
                if rows > documents:
                    raise joined.not_unique()
                matched += int(np.count_nonzero(batch["matched"].to_numpy(zero_copy_only=False)))
                kept = batch["chosen"].to_numpy(zero_copy_only=False)
                numbers, values = numbers[kept], values.filter(batch["chosen"])
            result[numbers] = True
            if repeats is not None:
                repeats[numbers] = self._times(values, numbers)
        if joined is not None and not matched and documents:
            raise joined.matches_nothing(documents)
        return SelectResult(result, repeats, None if joined is None else documents - matched)

    def warn_of_nan(self, names: Iterable[str]) -> None:
        """Say how many documents have NaN in one of some columns, which are compared."""
        there = columns_there(self._connection, "docs", HIDDEN)
        if self._joined is not None:
            there |= self._joined.columns
        any_nan = " OR ".join(f"isnan({quoted(one)})" for one in names if there.get(one) in _FLOATS)
        if not any_nan:
            return
        # With WHERE duckdb 2.0 passes over groups of rows whose statistics have no NaN, as none do.
        count = f"SELECT count(*) FILTER (WHERE {any_nan}) FROM {self._from}"
        [nans] = self._connection.execute(count).fetchone()
        if nans:
            _log.warning("%s with %s", counted(nans, "document"), NAN)

    @property
    def _from(self) -> str:
        return "docs" if self._joined is None else self._joined.clause

    def _check(self, where: str | None, times: str) -> None:
        """UsageError for an expression that duckdb does not take."""
        request = self._request
        for name, text, expression in (
            ("where", request.where, where),
            ("repeat", request.repeat, times),
        ):
            if text is None:
                continue
            described = self._execute(
                f"DESCRIBE SELECT ({expression}\n) AS value FROM {self._from}",
                f"{option(name)} {text}",
            )
            [kind] = [row[1] for row in described.fetchall()]
            if name == "where":
                check_boolean(kind, f"{option(name)} {text}:")
            elif kind not in INTEGERS:
                raise UsageError(
                    f"{option(name)} {text}: gives {kind}, expected an integer for each document, "
                    "such as `2 if score > 0.9` or `case when score > 0.9 then 2 else 1 end`"
                )

    def _times(self, column: Any, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        missing = column.null_count
        if missing:
            raise UsageError(
                f"{option('repeat')} {self._request.repeat}: gives NULL, for document "
                f"{numbers[column.is_null().to_numpy(zero_copy_only=False)][0]} first: say what "
                "else, as in `case when score > 0.9 then 2 else 1 end`"
            )
        for number, value in zip(numbers, column, strict=True) if _is_wide(column) else ():
            self._check_times(int(value.as_py()), number)
        values: npt.NDArray[np.int64] = column.cast("int64").to_numpy()
        for wrong in np.flatnonzero((values < 0) | (values > _MOST_TIMES - 1))[:1]:
            self._check_times(values[wrong], numbers[wrong])
        return values

    def _check_times(self, times: int, document: int) -> None:
        if not 0 <= times < _MOST_TIMES:
            raise UsageError(
                f"{option('repeat')} {self._request.repeat}: gives {times} for document "
                f"{document}, expected 0 to {_MOST_TIMES - 1}"
            )

    def _batches(self, query: str) -> Iterator[Any]:
        request = self._request
        shown = " ".join(
            f"{option(name)} {text}"
            for name, text in (("where", request.where), ("repeat", request.repeat))
            if text
        )
        import duckdb

        try:
            yield from self._connection.sql(query).to_arrow_reader(_BATCH)
        except (duckdb.Error, OSError) as error:
            raise self._failure(error, shown) from None

    def _execute(self, query: str, shown: str) -> Any:
        import duckdb

        try:
            return self._connection.execute(query)
        except duckdb.Error as error:
            raise self._failure(error, shown) from None

    def _failure(self, error: Exception, shown: str) -> UsageError:
        joined, more = self._joined, ""
        if joined is not None:
            if fault := joined.fault_of_file(error):
                return fault
            more = f"; {joined.name} has {listed(joined.columns)}"
        [message, *_] = str(error).split("\n\nLINE", maxsplit=1)[0].strip().splitlines()
        if unknown := _UNKNOWN.search(message):
            message = f"no column is called {unknown[1]}"
        columns = listed(columns_there(self._connection, "docs", HIDDEN))
        return UsageError(
            f"{shown}: {message.replace(_NUMBER, 'number')}; the table of documents has "
            f"{columns}{more}"
        )


def repeat_expression(text: str | None) -> str | None:
    """An expression for how often a document comes: ``2 if score > 0.9`` is short for a CASE."""
    match = _SHORT.fullmatch(text or "")
    return f"case when ({match[2]}\n) then {match[1]} else 1 end" if match else text


def _roots(expression: str | None) -> list[str]:
    """The columns that an expression names, also those of which it names what is inside."""
    return [path[0] for path in parse(expression).columns] if expression is not None else []


@contextmanager
def _connect() -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="tokpack-select-") as folder:
        connection = connect({"autoinstall_known_extensions": "false"})
        try:
            connection.execute(f"SET temp_directory = {literal(folder)}")
            yield connection
        finally:
            connection.close()


def _is_wide(column: Any) -> bool:
    """Whether there may be integers that do not fit into int64."""
    return str(column.type) not in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")

"""Expressions about the documents of datasets, which duckdb evaluates on their tables."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.format import document_lengths
from tokpack.dataset.table import (
    COLUMNS,
    OWN,
    TableReader,
    has_table,
    import_parquet,
    table_file,
)
from tokpack.errors import InputError, UsageError, option
from tokpack.quantities import counted
from tokpack.sources.sql import (
    NAN,
    check_boolean,
    columns_there,
    connect,
    describing,
    listed,
    literal,
    parse,
    quoted,
)
from tokpack.storage import exists, near

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tokpack.documents.base import Base


IN_MEMORY = "the table in memory"  # its name in messages
HIDDEN = "tokpack:"  # begins the names of columns hidden from users
MATCH = f'"{HIDDEN}match"'  # a column of ``joined`` that is true in each row
# Without this setting a folder such as lang=de would become a column, and hide one of the table.
NO_FOLDERS = ", hive_partitioning=false"
INTEGERS = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG")}
INTEGERS |= {"INTEGER", "UINTEGER", "HUGEINT", "UHUGEINT"}
_KEY = f"{HIDDEN}key "
_DOCUMENT = "document"  # an additional column: the number of a document
_EXAMPLES = 3
_PATTERN = re.compile(r"[*?\[]")
_READERS = {
    ".parquet": "read_parquet({files}, union_by_name=true{more})",
    ".csv": "read_csv({files}, header=true, union_by_name=true{more})",
    ".tsv": "read_csv({files}, header=true, union_by_name=true, delim='\t'{more})",
    ".jsonl": "read_json({files}, format='newline_delimited'{more})",
    ".json": "read_json({files}{more})",
}
_TEXT = "VARCHAR"
_TEXTS_OF_JSON = {"DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "UUID"}


class JoinedTable:
    """The view ``joined`` in a connection that has the view ``docs``: a table and its keys.

    ``name`` is its name in messages, ``columns`` are its columns with their types. UsageError if it
    cannot be read or does not have the keys, InputError for a file that is missing.
    """

    def __init__(self, connection: Any, request: SelectRequest) -> None:
        self._connection, self._request = connection, request
        self.name, self._keys = request.join[0], request.keys
        self._documents = columns_there(connection, "docs", HIDDEN)
        self.columns: Mapping[str, str] = {}
        if request.table is not None:
            connection.register("all_joined", request.table)
            self._look()
        else:
            self._read_files()
        self._check_types()
        # A key with the same name on both sides becomes one column, so that expressions can use it.
        same = sorted({there for here, there in self._keys if here == there})
        renamed = [f"{quoted(key)} AS {quoted(_KEY + key)}" for key in same]
        left = f" EXCLUDE ({', '.join(map(quoted, same))})" if same else ""
        others = [f"*{left}"] if len(same) < len(self.columns) else []
        columns = ", ".join([*others, *renamed, f"true AS {MATCH}"])
        connection.execute(f"CREATE VIEW joined AS SELECT {columns} FROM all_joined")
        self._keys = [(a, _KEY + b if a == b else b) for a, b in self._keys]

    @property
    def clause(self) -> str:
        """The FROM clause of a query for the documents with the table."""
        pairs = (f"docs.{quoted(a)} = joined.{quoted(b)}" for a, b in self._keys)
        return f"docs LEFT JOIN joined ON {' AND '.join(pairs)}"

    def fault_of_file(self, error: Exception) -> UsageError | None:
        """The error for a file that cannot be read, or None if the error is not about one."""
        for path in self._request.join if self._request.table is None else ():
            if os.path.abspath(near(path)) in str(error):
                message = str(error).split("\n\n", maxsplit=1)[0].splitlines()
                return UsageError(f"{option('join')} {path}: {'; '.join(message)}")
        return None

    def matches_nothing(self, documents: int) -> InputError:
        """The error if no row of the table belongs to a document."""
        sides = [
            self._connection.execute(
                f"SELECT DISTINCT {', '.join(quoted(pair[side]) for pair in self._keys)} "
                f"FROM {table} LIMIT {_EXAMPLES}"
            ).fetchall()
            for side, table in enumerate(("docs", "joined"))
        ]
        return InputError(
            f"{self._shown}: no row of it is of one of {documents:,} documents: their keys are "
            f"like {_examples(sides[0])}, those of the table like {_examples(sides[1])}"
        )

    def not_unique(self) -> InputError:
        """The error if several rows of the table belong to one document."""
        names = ", ".join(quoted(there) for _, there in self._keys)
        counts = f"SELECT {names}, count(*) AS times FROM joined GROUP BY ALL HAVING times > 1"
        other = self._connection.cursor()  # the connection is still running a query
        if self._request.table is not None:  # a registered table is not visible in a cursor
            other.register("all_joined", self._request.table)
        several = other.execute(f"SELECT count(*) FROM ({counts})").fetchone()[0]
        order = f"ORDER BY times DESC, {names} LIMIT {_EXAMPLES}"
        rows = other.execute(f"{counts} {order}").fetchall()
        examples = ", ".join(f"{_examples([row[:-1]])} ({row[-1]} rows)" for row in rows)
        return InputError(
            f"{self._shown}: {counted(several, 'key')} not unique, such as {examples}: keep one "
            "row of each"
        )

    @property
    def _shown(self) -> str:
        keys = ", ".join(here for here, _ in self._keys)
        return f"{option('join')} {self.name} {option('on')} {keys}"

    def _read_files(self) -> None:
        files = self._request.join
        suffixes = {os.path.splitext(_plain_name(path))[1].lower() for path in files}
        reader = _READERS.get(next(iter(suffixes))) if len(suffixes) == 1 else None
        if reader is None:
            raise UsageError(
                f"{option('join')} {self.name}: expected files of one kind, of "
                f"{', '.join(_READERS)} (these also as .gz or .zst)"
            )
        for path in files:
            if not exists(path):
                raise InputError(f"{path}: no such file")
        names = "[" + ", ".join(file_literal(near(path)) for path in files) + "]"
        self._read(reader.format(files=names, more=NO_FOLDERS))
        if types := self._types(reader):
            self._read(reader.format(files=names, more=NO_FOLDERS + types))

    def _read(self, source: str) -> None:
        import duckdb

        query = f"CREATE OR REPLACE VIEW all_joined AS SELECT * FROM {source}"
        try:
            self._connection.execute(query)
        except duckdb.Error as error:
            fault = self.fault_of_file(error)
            raise fault or UsageError(f"{option('join')} {self.name}: {error}") from None
        self._look()

    def _look(self) -> None:
        """Read the columns. UsageError if a key is none of them."""
        self.columns = columns_there(self._connection, "all_joined", HIDDEN)
        for here, there in self._keys:
            for key, columns, name in (
                (here, self._documents, "the table of documents"),
                (there, self.columns, self.name),
            ):
                if key not in columns:
                    raise UsageError(
                        f"{option('on')} {key}: {name} has no such column; its columns are "
                        f"{listed(columns)}"
                    )

    def _types(self, reader: str) -> str:
        """An argument that keeps a text reader from reading keys as numbers or dates.

        Keys that are strings in the documents stay as written, so that 007 is not 7.
        """
        here, there = self._documents, self.columns
        keys = {b: _TEXT for a, b in self._keys if here[a] == _TEXT != there[b]}
        if keys and "read_csv" in reader:
            return f", types={_struct(keys)}"
        keys = {key: _TEXT for key in keys if there[key] in _TEXTS_OF_JSON}
        if keys and "read_json" in reader:
            return f", columns={_struct({**there, **keys})}"
        return ""

    def _check_types(self) -> None:
        """Raise UsageError for keys with two types: a cast might match different values."""
        for here, there in self._keys:
            kinds = {self._documents[here], self.columns[there]}
            if len(kinds) > 1 and not kinds <= INTEGERS:
                raise UsageError(
                    f"{option('on')} {here}: is {self._documents[here]} in the table of documents, "
                    f"{there} is {self.columns[there]} in {self.name}: convert them to one type, "
                    "because 007 is not 7"
                )


def file_literal(path: str) -> str:
    """A path as a literal in SQL, which duckdb does not take for a pattern."""
    return literal(_PATTERN.sub(r"[\g<0>]", os.path.abspath(path)))


def _plain_name(path: str) -> str:
    """A name without the suffix of its compression."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix.lower() in (".gz", ".zst") else path


def _examples(rows: Sequence[tuple[Any, ...]]) -> str:
    shown = [", ".join(map(repr, row)) for row in rows]
    return "; ".join(shown) or "none"


def _struct(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{literal(key)}: {literal(one)}" for key, one in values.items()) + "}"


_NUMBERS = {"int64", "double"}


def nulls_of_tables(
    tables: Sequence[Any],
    schemas: Sequence[Any],
    names: Sequence[str],
    named: Mapping[str, str],
) -> list[dict[str, str]]:
    """The columns of each table that have only null, with the type that they have in other tables.

    ``names`` are the datasets', ``named`` the columns in use, each with the option that names it.
    UsageError if one of these is text in some tables and something else in others.
    """
    nulls: list[dict[str, str]] = [{} for _ in tables]
    for column in dict.fromkeys(name for schema in schemas for name in schema.names):
        kinds = {n: _kind(one, column) for n, one in enumerate(schemas) if column in one.names}
        if _go_together(kinds.values()):
            continue
        empty = [n for n in kinds if TableReader(tables[n]).is_null(column)]
        kinds = {n: kind for n, kind in kinds.items() if n not in empty}
        if kinds and _go_together(kinds.values()):
            kind = "double" if "double" in kinds.values() else next(iter(kinds.values()))
            for n in empty:
                nulls[n][column] = kind
        elif column in named:
            first = {kind: names[n] for n, kind in reversed(kinds.items())}
            shown = ", ".join(f"{kind} in {first[kind]}" for kind in dict.fromkeys(kinds.values()))
            raise UsageError(
                f"{option(named[column])} names the column {column}, which has several types: "
                f"{shown}; select from each dataset alone, then from the views together"
            )
    return nulls


def _kind(schema: Any, column: str) -> str:
    kind = str(schema.field(column).type)
    return "string" if kind.startswith("dictionary") else kind


def _go_together(kinds: Collection[str]) -> bool:
    different = set(kinds)
    return len(different) < 2 or different <= _NUMBERS


_log = logging.getLogger(__name__)
_FLOATS = ("DOUBLE", "FLOAT")
_BATCH = 1 << 18  # rows that are read at once
_MOST_TIMES = 1 << 16  # repeats of a document in a view; more must be a mistake
_NARROW = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")  # all fit into int64
_NUMBER = f'"{HIDDEN}number"'
_UNKNOWN = re.compile(r'Referenced column "(.+)" not found')
_SHORT = re.compile(r"\s*(\d+)\s+if\s+(.+)", re.DOTALL | re.IGNORECASE)


class SelectRequest(NamedTuple):
    """A request about documents: expressions in SQL, and a table to join by its keys."""

    where: str | None
    repeat: str | None
    join: Sequence[str]
    keys: Sequence[tuple[str, str]]  # a column of the documents, and of the joined table
    table: Any = None  # an Arrow table to join, instead of files


class SelectResult(NamedTuple):
    """The documents of the base that are chosen, bool [documents], and how often each occurs.

    ``times`` is uint16 [documents], or None for once each. ``unmatched`` is the number of documents
    without a row in the joined table, None without one.
    """

    chosen: npt.NDArray[np.bool_]
    times: npt.NDArray[np.uint16] | None
    unmatched: int | None


def evaluate(request: SelectRequest, base: Base) -> SelectResult:
    """Evaluate expressions on the tables of the documents of all datasets.

    UsageError for an expression that cannot be evaluated, InputError if a table is missing or a
    join matches nothing or several rows, FormatError if a table is of another dataset.
    """
    if request.where is not None:
        parse(request.where)  # as for encode: it must depend on the document alone
    if (repeat := repeat_expression(request.repeat)) is not None:
        parse(repeat, option("repeat") + (f" {request.repeat!r}" if repeat.strip() else ""))
    named = dict.fromkeys(_roots(repeat), "repeat") | {here: "on" for here, _ in request.keys}
    named |= dict.fromkeys(_roots(request.where), "where")
    tables = [_table_of(record.prefix, named) for record in base.records]
    with _connect() as connection:
        query = _Query(connection, request, tables, base, named)
        result = query.run(int(base.starts[-1]))
        compared = [one for one in (request.where, repeat) if one and not parse(one).asks_nan]
        query.warn_of_nan({name for one in compared for name in _roots(one)})
        return result


def _table_of(prefix: str, named: Iterable[str]) -> Any:
    """The path of a dataset's table, or, if enough, an Arrow table from its .idx.

    Raises as ``table_file``.
    """
    if has_table(prefix) or not {name.lower() for name in named} <= {"tokens", _DOCUMENT}:
        return table_file(prefix)
    dataset = MMapIndexedDataset(prefix)
    lengths = document_lengths(dataset.sizes, dataset.doc_idx).astype(np.int64)
    numbers = np.arange(len(lengths))
    return import_parquet().table({"file_row_number": numbers, "tokens": lengths})


def _schemas(tables: Sequence[Any]) -> tuple[list[Any], list[dict[str, str]]]:
    """The schemas of tables, and new names for own columns of which another table keeps one."""
    arrow = import_parquet()
    schemas = [
        arrow.parquet.read_schema(one) if isinstance(one, str) else one.schema for one in tables
    ]
    there = {name for one in schemas for name in one.names}
    moved = [
        {
            name: OWN + name
            for name in COLUMNS
            if OWN + name in there and name in one.names and OWN + name not in one.names
        }
        for one in schemas
    ]
    pairs = zip(schemas, moved, strict=True)
    return [
        arrow.schema([f.with_name(new.get(f.name, f.name)) for f in s]) for s, new in pairs
    ], moved


class _Query:
    """One query over all documents, and its errors in words."""

    def __init__(
        self,
        connection: Any,
        request: SelectRequest,
        tables: Sequence[Any],
        base: Base,
        named: Mapping[str, str],
    ) -> None:
        self._connection, self._request = connection, request
        schemas, moved = _schemas(tables)
        nulls = nulls_of_tables(tables, schemas, [one.prefix for one in base.records], named)
        has_one = any(name.lower() == _DOCUMENT for one in schemas for name in one.names)
        rows = []
        for n, (table, start) in enumerate(zip(tables, base.starts.tolist(), strict=False)):
            first = f"{start} + file_row_number AS {_NUMBER}, "
            first += "" if has_one else f"{base.before[n]} + file_row_number AS {_DOCUMENT}, "
            first += "".join(f"{quoted(old)} AS {quoted(new)}, " for old, new in moved[n].items())
            left = ", ".join(["file_row_number", *map(quoted, moved[n])])
            given = f"tokens_{n}"
            if isinstance(table, str):
                given = f"read_parquet({file_literal(table)}, file_row_number=true{NO_FOLDERS})"
            else:
                connection.register(given, table)
            # Columns with only nulls get their type in other tables.
            typed = ", ".join(f"NULL::{kind} AS {quoted(one)}" for one, kind in nulls[n].items())
            replaced = f"REPLACE ({typed})" if typed else ""
            rows.append(f"SELECT {first}* EXCLUDE ({left}) {replaced} FROM {given}")
        connection.execute(f"CREATE VIEW docs AS {' UNION ALL BY NAME '.join(rows)}")
        self._joined = JoinedTable(connection, request) if request.join else None

    def run(self, documents: int) -> SelectResult:
        """Run the query once over all documents."""
        request = self._request
        where = f"coalesce(({request.where}\n), false)" if request.where else "true"
        repeat = repeat_expression(request.repeat)
        times = f"({repeat}\n)" if repeat else "1"
        self._check(request.where, times)
        joined = self._joined
        chosen = f"SELECT {_NUMBER} AS number, {times} AS times"
        if joined is not None:  # rows are counted before some are dropped
            query = f"{chosen}, {where} AS chosen, {MATCH} IS NOT NULL AS matched FROM {self._from}"
        else:
            query = f"{chosen} FROM docs WHERE {where}"
        result = np.zeros(documents, np.bool_)
        repeats = np.zeros(documents, np.uint16) if repeat else None
        rows = matched = 0
        for batch in self._batches(query):
            numbers, values = batch["number"].to_numpy(), batch["times"]
            if joined is not None:
                rows += len(numbers)  # more than one for a document are too many
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
        """Warn how many documents have NaN in one of some columns that are compared."""
        there = columns_there(self._connection, "docs", HIDDEN)
        if self._joined is not None:
            there |= self._joined.columns
        any_nan = " OR ".join(f"isnan({quoted(one)})" for one in names if there.get(one) in _FLOATS)
        if not any_nan:
            return
        # Not in a WHERE: duckdb 2.0 skips row groups by statistics, which do not show NaN.
        count = f"SELECT count(*) FILTER (WHERE {any_nan}) FROM {self._from}"
        [nans] = self._connection.execute(count).fetchone()
        if nans:
            _log.warning("%s with %s", counted(nans, "document"), NAN)

    @property
    def _from(self) -> str:
        return "docs" if self._joined is None else self._joined.clause

    def _check(self, where: str | None, times: str) -> None:
        """Raise UsageError for an expression that duckdb does not accept."""
        import duckdb

        request = self._request
        for name, text, expression in (
            ("where", request.where, where or ""),
            ("repeat", request.repeat, times),
        ):
            if text is None:
                continue
            query, shown = describing(expression, self._from), f"{option(name)} {text}"
            try:
                [kind] = [row[1] for row in self._connection.execute(query).fetchall()]
            except duckdb.Error as error:
                raise self._failure(error, shown) from None
            if name == "where":
                check_boolean(kind, f"{shown}:")
            elif kind not in INTEGERS:
                raise UsageError(
                    f"{shown}: gives {kind}, expected an integer for each document, "
                    "such as `2 if score > 0.9` or `case when score > 0.9 then 2 else 1 end`"
                )

    def _times(self, column: Any, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        missing = column.null_count
        if missing:
            raise UsageError(
                f"{option('repeat')} {self._request.repeat}: gives NULL, for document "
                f"{numbers[column.is_null().to_numpy(zero_copy_only=False)][0]} first: add an "
                "else, as in `case when score > 0.9 then 2 else 1 end`"
            )
        if str(column.type) in _NARROW:
            values = column.cast("int64").to_numpy()
        else:
            values = np.array([int(one.as_py()) for one in column], object)
        for wrong in np.flatnonzero((values < 0) | (values >= _MOST_TIMES))[:1]:
            raise UsageError(
                f"{option('repeat')} {self._request.repeat}: gives {values[wrong]} for document "
                f"{numbers[wrong]}, expected 0 to {_MOST_TIMES - 1}"
            )
        times: npt.NDArray[np.int64] = values.astype(np.int64, copy=False)
        return times

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

    def _failure(self, error: Exception, shown: str) -> UsageError:
        joined, more = self._joined, ""
        if joined is not None:
            if fault := joined.fault_of_file(error):
                return fault
            more = f"; {joined.name} has {listed(joined.columns)}"
        [message, *_] = str(error).split("\n\nLINE", maxsplit=1)[0].strip().splitlines()
        if unknown := _UNKNOWN.search(message):
            message = f"there is no column {unknown[1]}"
        columns = listed(columns_there(self._connection, "docs", HIDDEN))
        return UsageError(
            f"{shown}: {message.replace(_NUMBER, 'number')}; the table of documents has "
            f"{columns}{more}"
        )


def repeat_expression(text: str | None) -> str | None:
    """An SQL expression for repeats: ``2 if score > 0.9`` is short for a CASE."""
    match = _SHORT.fullmatch(text or "")
    return f"case when ({match[2]}\n) then {match[1]} else 1 end" if match else text


def _roots(expression: str | None) -> list[str]:
    """The columns in an expression; for a field inside one, the whole column."""
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

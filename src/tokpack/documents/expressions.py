"""What expressions say of the documents of datasets, evaluated by duckdb on their tables."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.documents.unite import nulls_of_tables, quoted, with_types
from tokpack.encoding.where import parse
from tokpack.errors import InputError, UsageError, needs_extra, option
from tokpack.indexed.table import table_paths
from tokpack.stores import exists, near

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.documents.base import Base

_BATCH = 1 << 18  # rows that come at once
_EXAMPLES = 3
_MOST_TIMES = 1 << 16  # one document in a view; more is a mistake
_INTEGERS = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG")}
_INTEGERS |= {"INTEGER", "UINTEGER", "HUGEINT", "UHUGEINT"}
_SHORT = re.compile(r"\s*(\d+)\s+if\s+(.+)", re.DOTALL | re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[]")
_READERS = {
    ".parquet": "read_parquet({files}, union_by_name=true{more})",
    ".csv": "read_csv({files}, header=true, union_by_name=true{more})",
    ".tsv": "read_csv({files}, header=true, union_by_name=true, delim='\t'{more})",
    ".jsonl": "read_json({files}, format='newline_delimited'{more})",
    ".json": "read_json({files}{more})",
}
# A folder such as lang=de would otherwise be a column, in place of one of the table's own.
_NO_FOLDERS = ", hive_partitioning=false"
_TEXT = "VARCHAR"
_TEXTS_OF_JSON = {"DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "UUID"}


class Request(NamedTuple):
    """What is asked of the documents: expressions in SQL, and a table to join by its keys."""

    where: str | None
    repeat: str | None
    join: Sequence[str]
    keys: Sequence[tuple[str, str]]  # columns of the documents, and of the joined table


class Answer(NamedTuple):
    """Which documents of the base are chosen, bool [documents], and how often each of them comes.

    ``times`` is uint16 [documents], None where each comes once. ``unmatched`` is how many documents
    have no row in the joined table, None without one.
    """

    chosen: npt.NDArray[np.bool_]
    times: npt.NDArray[np.uint16] | None
    unmatched: int | None


def evaluate(request: Request, base: Base) -> Answer:
    """Evaluate expressions on the tables of the documents of all datasets.

    UsageError for an expression that cannot be evaluated, InputError where a table is missing or a
    join matches nothing or several rows, FormatError where a table is of another dataset.
    """
    if request.where is not None:
        parse(request.where)  # refuses what is no function of the document alone, as encode does
    if (repeat := repeat_of(request.repeat)) is not None:
        parse(repeat, option("repeat") + (f" {request.repeat!r}" if repeat.strip() else ""))
    tables = [path for record in base.records for path in table_paths(record.prefix)]
    named = dict.fromkeys(_roots(repeat), "repeat") | {here: "on" for here, _ in request.keys}
    named |= dict.fromkeys(_roots(request.where), "where")
    nulls = nulls_of_tables(tables, [record.prefix for record in base.records], named)
    with _connect() as connection:
        query = _Query(connection, request, tables, base.starts.tolist(), nulls)
        return query.run(int(base.starts[-1]))


class _Query:
    """One query over all documents, and what is wrong with it."""

    def __init__(
        self,
        connection: Any,
        request: Request,
        tables: Sequence[str],
        starts: Sequence[int],
        nulls: Sequence[dict[str, str]],
    ) -> None:
        self._connection, self._request = connection, request
        rows = " UNION ALL BY NAME ".join(
            f"SELECT {start} + file_row_number AS {_NUMBER}, * EXCLUDE (file_row_number) "
            f"{with_types(null)} "
            f"FROM read_parquet({_file(path)}, file_row_number=true{_NO_FOLDERS})"
            for path, start, null in zip(tables, starts, nulls, strict=False)
        )
        connection.execute(f"CREATE VIEW docs AS {rows}")
        if request.join:
            self._make_joined()

    def run(self, documents: int) -> Answer:
        """Go through all documents once."""
        request = self._request
        where = f"coalesce(({request.where}\n), false)" if request.where else "true"
        repeat = repeat_of(request.repeat)
        times = f"({repeat}\n)" if repeat else "1"
        self._check(request.where, times)
        joins = bool(request.join)
        chosen = f"SELECT {_NUMBER} AS number"
        chosen += f", {times} AS times"
        if joins:  # rows are counted before any is dropped
            query = (
                f"{chosen}, {where} AS chosen, {_MATCH} IS NOT NULL AS matched FROM {self._from}"
            )
        else:
            query = f"{chosen} FROM docs WHERE {where}"
        result = np.zeros(documents, np.bool_)
        repeats = np.zeros(documents, np.uint16) if repeat else None
        seen = np.zeros(documents if joins else 0, np.bool_)
        matched = 0
        for batch in self._batches(query):
            numbers, values = batch["number"].to_numpy(), batch["times"]
            if joins:
                if seen[numbers].any() or len(np.unique(numbers)) < len(numbers):
                    raise self._not_unique()
                seen[numbers] = True
                matched += int(np.count_nonzero(batch["matched"].to_numpy(zero_copy_only=False)))
                kept = batch["chosen"].to_numpy(zero_copy_only=False)
                numbers, values = numbers[kept], values.filter(batch["chosen"])
            result[numbers] = True
            if repeats is not None:
                repeats[numbers] = self._times(values, numbers)
        if joins and not matched and documents:
            raise self._matches_nothing(documents)
        return Answer(result, repeats, documents - matched if joins else None)

    @property
    def _from(self) -> str:
        if not self._request.join:
            return "docs"
        pairs = (f"docs.{quoted(a)} = joined.{quoted(b)}" for a, b in self._request.keys)
        return f"docs LEFT JOIN joined ON {' AND '.join(pairs)}"

    def _make_joined(self) -> None:
        request = self._request
        suffixes = {os.path.splitext(_plain_name(path))[1].lower() for path in request.join}
        reader = _READERS.get(next(iter(suffixes))) if len(suffixes) == 1 else None
        if reader is None:
            raise UsageError(
                f"{option('join')} {request.join[0]}: expected files of one kind, of "
                f"{', '.join(_READERS)} (these also as .gz or .zst)"
            )
        for path in request.join:
            if not exists(path):
                raise InputError(f"{path}: no such file")
        files = "[" + ", ".join(_file(near(path)) for path in request.join) + "]"
        keys = {there for here, there in request.keys if here == there}
        self._read_joined(reader.format(files=files, more=_NO_FOLDERS))
        self._check_keys()
        if types := self._types(reader):
            self._read_joined(reader.format(files=files, more=_NO_FOLDERS + types))
        self._check_types()
        # A key of one name on both sides is one column, so that an expression can name it.
        renamed = ", ".join(f"{quoted(key)} AS {quoted(_KEY + key)}" for key in sorted(keys))
        left = f" EXCLUDE ({', '.join(map(quoted, sorted(keys)))})" if keys else ""
        columns = ", ".join(filter(None, (f"*{left}", renamed, f"true AS {_MATCH}")))
        if len(keys) == len(self._columns("all_joined")):
            columns = f"{renamed}, true AS {_MATCH}"
        self._connection.execute(f"CREATE VIEW joined AS SELECT {columns} FROM all_joined")
        self._request = request._replace(
            keys=[(here, _KEY + there if here == there else there) for here, there in request.keys]
        )

    def _read_joined(self, source: str) -> None:
        self._execute(
            f"CREATE OR REPLACE VIEW all_joined AS SELECT * FROM {source}", self._request.join[0]
        )

    def _types(self, reader: str) -> str:
        """An argument for a reader of text which takes keys for numbers, dates or the like.

        Where they are strings in the documents they stay as they are written: 007 is no 7 then.
        """
        here, there = self._columns("docs"), self._columns("all_joined")
        keys = {b: _TEXT for a, b in self._request.keys if here[a] == _TEXT != there[b]}
        if keys and "read_csv" in reader:
            return f", types={_struct(keys)}"
        keys = {key: _TEXT for key in keys if there[key] in _TEXTS_OF_JSON}
        if keys and "read_json" in reader:
            return f", columns={_struct({**there, **keys})}"
        return ""

    def _check_types(self) -> None:
        """UsageError for keys of two types: a cast would match what is not the same."""
        own, other = self._columns("docs"), self._columns("all_joined")
        for here, there in self._request.keys:
            if own[here] != other[there] and not {own[here], other[there]} <= _INTEGERS:
                raise UsageError(
                    f"{option('on')} {here}: is {own[here]} in the table of documents, {there} "
                    f"is {other[there]} in {self._request.join[0]}: bring them to one type, as "
                    "007 is no 7"
                )

    def _check_keys(self) -> None:
        for number, table in enumerate(("docs", "all_joined")):
            there = self._columns(table)
            for pair in self._request.keys:
                if pair[number] not in there:
                    name = self._request.join[0] if number else "the table of documents"
                    raise UsageError(
                        f"{option('on')} {pair[number]}: {name} has no such column, but "
                        f"{_listed(there)}"
                    )

    def _columns(self, table: str) -> dict[str, str]:
        """Names and types of the columns of a table."""
        rows = self._connection.execute(f"DESCRIBE {table}").fetchall()
        return {name: kind for name, kind, *_ in rows if not name.startswith(_HIDDEN)}

    def _check(self, where: str | None, times: str) -> None:
        """UsageError for an expression that duckdb does not take."""
        request = self._request
        for name, text, expression in (
            ("where", request.where, where),
            ("repeat", request.repeat, times),
        ):
            if text is None:
                continue
            found = self._execute(
                f"DESCRIBE SELECT ({expression}\n) AS value FROM {self._from}",
                f"{option(name)} {text}",
            )
            [kind] = [row[1] for row in found.fetchall()]
            if name == "where" and kind != "BOOLEAN":
                raise UsageError(
                    f"{option(name)} {text}: gives {kind}, and is to be true or false: compare it "
                    "with something"
                )
            if name == "repeat" and kind not in _INTEGERS:
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
        for path in self._request.join:
            if os.path.abspath(near(path)) in str(error):  # it is the file, not the expression
                message = str(error).split("\n\n", maxsplit=1)[0].splitlines()
                return UsageError(f"{option('join')} {path}: {'; '.join(message)}")
        message = str(error).split("\n\nLINE", maxsplit=1)[0].strip().splitlines()
        columns = self._columns("docs")
        more = ""
        if self._request.join and not shown.startswith(self._request.join[0]):
            more = f"; {self._request.join[0]} has {_listed(self._columns('all_joined'))}"
        return UsageError(
            f"{shown}: {message[0].replace(_NUMBER, 'number')}; the table of documents has "
            f"{_listed(columns)}{more}"
        )

    def _matches_nothing(self, documents: int) -> InputError:
        sides = [
            self._connection.execute(
                f"SELECT DISTINCT {', '.join(quoted(pair[side]) for pair in self._request.keys)} "
                f"FROM {table} LIMIT {_EXAMPLES}"
            ).fetchall()
            for side, table in enumerate(("docs", "joined"))
        ]
        keys = ", ".join(pair[0] for pair in self._request.keys)
        return InputError(
            f"{option('join')} {self._request.join[0]} {option('on')} {keys}: no row of it is of "
            f"one of {documents:,} documents: their keys are like {_examples(sides[0])}, those of "
            f"the table like {_examples(sides[1])}"
        )

    def _not_unique(self) -> InputError:
        names = ", ".join(quoted(there) for _, there in self._request.keys)
        counts = f"SELECT {names}, count(*) AS times FROM joined GROUP BY ALL HAVING times > 1"
        other = self._connection.cursor()  # on this one a query is under way
        several = other.execute(f"SELECT count(*) FROM ({counts})").fetchone()[0]
        order = f"ORDER BY times DESC, {names} LIMIT {_EXAMPLES}"
        rows = other.execute(f"{counts} {order}").fetchall()
        examples = ", ".join(f"{_examples([row[:-1]])} ({row[-1]} rows)" for row in rows)
        keys = ", ".join(pair[0] for pair in self._request.keys)
        return InputError(
            f"{option('join')} {self._request.join[0]} {option('on')} {keys}: {several:,} keys "
            f"are not unique there, such as {examples}: keep one row of each"
        )


_HIDDEN = "tokpack:"
_NUMBER, _MATCH, _KEY = f'"{_HIDDEN}number"', f'"{_HIDDEN}match"', f"{_HIDDEN}key "


def repeat_of(text: str | None) -> str | None:
    """An expression for how often a document comes: ``2 if score > 0.9`` is short for a CASE."""
    match = _SHORT.fullmatch(text or "")
    return f"case when ({match[2]}\n) then {match[1]} else 1 end" if match else text


def _roots(expression: str | None) -> list[str]:
    """The columns that an expression names, also those of which it names what is inside."""
    return [path[0] for path in parse(expression).columns] if expression is not None else []


@contextmanager
def _connect() -> Iterator[Any]:
    with needs_extra("select"):
        import duckdb
    with tempfile.TemporaryDirectory(prefix="tokpack-select-") as folder:
        connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
        try:
            connection.execute(f"SET temp_directory = {_text(folder)}")
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
        finally:
            connection.close()


def _is_wide(column: Any) -> bool:
    """Whether there may be integers that do not fit into int64."""
    return str(column.type) not in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def _plain_name(path: str) -> str:
    """A name without the suffix of its compression."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix.lower() in (".gz", ".zst") else path


def _examples(rows: Sequence[tuple[Any, ...]]) -> str:
    shown = [", ".join(map(repr, row)) for row in rows]
    return "; ".join(shown) or "none"


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in columns.items()) or "no columns"


def _file(path: str) -> str:
    """A path of a file, which duckdb would otherwise take for a pattern."""
    return _text(_PATTERN.sub(r"[\g<0>]", os.path.abspath(path)))


def _struct(values: dict[str, str]) -> str:
    return "{" + ", ".join(f"{_text(key)}: {_text(one)}" for key, one in values.items()) + "}"


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

"""A table that is joined to that of the documents: from files or in memory, and its keys."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from tokpack.errors import InputError, UsageError, option
from tokpack.quantities import counted
from tokpack.sources.sql import columns_there, listed, literal, quoted
from tokpack.stores import exists, near

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.documents.expressions import SelectRequest

IN_MEMORY = "the table in memory"  # as messages name it
HIDDEN = "tokpack:"  # begins the names of columns that no user sees
MATCH = f'"{HIDDEN}match"'  # a column of ``joined``: true in each row
# A folder such as lang=de would otherwise be a column, in place of one of the table's own.
NO_FOLDERS = ", hive_partitioning=false"
INTEGERS = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG")}
INTEGERS |= {"INTEGER", "UINTEGER", "HUGEINT", "UHUGEINT"}
_KEY = f"{HIDDEN}key "
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
    """The view ``joined`` of a connection that has the view ``docs``: a table and its keys.

    ``name`` is what messages call it, ``columns`` are its columns with their types. UsageError for
    one that cannot be read or has not the keys, InputError for a file that is missing.
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
        # A key of one name on both sides is one column, so that an expression can name it.
        same = sorted({there for here, there in self._keys if here == there})
        renamed = [f"{quoted(key)} AS {quoted(_KEY + key)}" for key in same]
        left = f" EXCLUDE ({', '.join(map(quoted, same))})" if same else ""
        others = [f"*{left}"] if len(same) < len(self.columns) else []
        columns = ", ".join([*others, *renamed, f"true AS {MATCH}"])
        connection.execute(f"CREATE VIEW joined AS SELECT {columns} FROM all_joined")
        self._keys = [(a, _KEY + b if a == b else b) for a, b in self._keys]

    @property
    def clause(self) -> str:
        """The documents with the table, as a query has them."""
        pairs = (f"docs.{quoted(a)} = joined.{quoted(b)}" for a, b in self._keys)
        return f"docs LEFT JOIN joined ON {' AND '.join(pairs)}"

    def fault_of_file(self, error: Exception) -> UsageError | None:
        """The error of a file that cannot be read, where it is about one."""
        for path in self._request.join if self._request.table is None else ():
            if os.path.abspath(near(path)) in str(error):
                message = str(error).split("\n\n", maxsplit=1)[0].splitlines()
                return UsageError(f"{option('join')} {path}: {'; '.join(message)}")
        return None

    def matches_nothing(self, documents: int) -> InputError:
        """The error of a table of which no row is of a document."""
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
        """The error of a table with several rows for a document."""
        names = ", ".join(quoted(there) for _, there in self._keys)
        counts = f"SELECT {names}, count(*) AS times FROM joined GROUP BY ALL HAVING times > 1"
        other = self._connection.cursor()  # on this one a query is under way
        if self._request.table is not None:  # which only the connection that it was given to has
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
        """Look at the columns. UsageError where a key is none of them."""
        self.columns = columns_there(self._connection, "all_joined", HIDDEN)
        for here, there in self._keys:
            for key, columns, name in (
                (here, self._documents, "the table of documents"),
                (there, self.columns, self.name),
            ):
                if key not in columns:
                    raise UsageError(
                        f"{option('on')} {key}: {name} has no such column, but {listed(columns)}"
                    )

    def _types(self, reader: str) -> str:
        """An argument for a reader of text which takes keys for numbers, dates or the like.

        Where they are strings in the documents they stay as they are written: 007 is no 7 then.
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
        """UsageError for keys of two types: a cast would match what is not the same."""
        for here, there in self._keys:
            kinds = {self._documents[here], self.columns[there]}
            if len(kinds) > 1 and not kinds <= INTEGERS:
                raise UsageError(
                    f"{option('on')} {here}: is {self._documents[here]} in the table of documents, "
                    f"{there} is {self.columns[there]} in {self.name}: bring them to one type, as "
                    "007 is no 7"
                )


def file_literal(path: str) -> str:
    """A path of a file, which duckdb would otherwise take for a pattern."""
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

"""Expressions of DuckDB's SQL on the columns of one record: what they need, and what is wrong.

An expression must depend on the record alone. Subqueries, the time and random values are refused
here, aggregates by duckdb, whose messages are also used for other errors. Expressions cannot access
files or settings.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import UsageError, needs_extra, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Without threads, because workers are forked, and without access to anything else.
_CLOSED = {
    "threads": "1",
    "async_threads": "0",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_REFUSED = {"SUBQUERY": "a subquery", "STAR": "a star"}
# With this few arguments these functions depend on the time, which duckdb does not report.
_CLOCKS = {"age": 1}
# Functions, and macros made of them, that may return different values for the same arguments.
# Functions of timestamps also depend on the time zone, but here it is always UTC.
_CHANGING = """
WITH RECURSIVE
known AS MATERIALIZED (
    SELECT DISTINCT function_name AS name, function_type AS kind, stability, return_type AS result,
        parameter_types::text AS parameters, macro_definition AS macro
    FROM duckdb_functions()
),
changing(name) AS (
    SELECT unnest([
        'current_timestamp', 'current_date', 'current_time', 'localtime', 'localtimestamp'
    ])
    UNION SELECT name FROM known
    WHERE stability <> 'CONSISTENT' AND NOT (
        stability = 'CONSISTENT_WITHIN_QUERY' AND parameters <> '[]'
        AND regexp_matches(parameters || result, 'TIMESTAMPTZ|WITH TIME ZONE')
    )
    UNION SELECT known.name FROM known, changing
    WHERE kind = 'macro' AND list_contains(regexp_extract_all(macro, '\\w+'), changing.name)
)
SELECT name FROM changing
"""
_OF_NAN = ("isnan", "isfinite", "isinf")
NAN = (
    "NaN, which DuckDB treats as larger than any number, so that it passes score > 0.9: "
    "add 'and not isnan(score)' to leave it out"
)
_SCALAR = "it can be any scalar expression on the columns of one record"
_CASTS = dict.fromkeys(
    ("double", "float", "float8", "float4", "real", "decimal", "numeric"), "double"
) | dict.fromkeys(("varchar", "text", "string", "char", "bpchar"), "string")


@dataclass(frozen=True)
class Expression:
    """A ``where`` that was parsed, and what it needs.

    ``columns`` are the paths of its columns: ``("meta", "lang")`` for ``meta.lang``. ``casts`` are
    types that it gives to some of them, as in ``score::double``. ``asks_nan``: it calls a function
    that tests for NaN.
    """

    text: str
    columns: tuple[tuple[str, ...], ...]
    casts: dict[tuple[str, ...], str]
    asks_nan: bool


def version() -> str:
    """The version of duckdb, which decides what an expression means."""
    with needs_extra("select"):
        import duckdb
    return str(duckdb.__version__)


@functools.cache  # opening a connection is slow
def parse(text: str, shown: str = "") -> Expression:
    """Parse an expression. UsageError if it is invalid, or depends on more than the record.

    ``shown`` is its name in errors, if not ``where``.
    """
    if not isinstance(text, str):
        raise UsageError(
            f"{shown or option('where')} is {brief(text)}; it is an expression in SQL, such as "
            f"'length(text) > 200'; for a function of your own use {option('map')} of encode"
        )
    if not text.strip():
        raise UsageError(f"{shown or option('where')} is empty: {_SCALAR}")
    shown = shown or f"{option('where')} {text!r}"
    with connect_closed() as connection:
        tree = _tree(connection, text, shown)
        changing = {name for (name,) in connection.execute(_CHANGING).fetchall()}
    columns: dict[tuple[str, ...], None] = {}
    casts: dict[tuple[str, ...], str] = {}
    asks_nan = False
    for node, names in _nodes(tree, frozenset()):
        kind = node.get("class")
        if kind in _REFUSED:
            raise UsageError(f"{shown} has {_REFUSED[kind]}; {_SCALAR}")
        if kind == "FUNCTION":
            name = node["function_name"].lower()
            asks_nan |= name in _OF_NAN
            if name in changing or len(node["arguments"]) <= _CLOCKS.get(name, -1):
                raise UsageError(
                    f"{shown} has {name}(), which returns something else each time: a dataset must "
                    "be the same whenever and wherever it is made"
                )
        if kind == "COLUMN_REF" and node["column_names"][0] not in names:
            columns[tuple(node["column_names"])] = None
        if kind == "CAST" and node["child"].get("class") == "COLUMN_REF":
            name = str(node.get("type_expr", {}).get("type_name", "")).lower()
            if name in _CASTS:
                casts[tuple(node["child"]["column_names"])] = _CASTS[name]
    return Expression(text, tuple(columns), casts, asks_nan)


def columns_of(text: str | None) -> tuple[str, ...]:
    """The names of the columns of an expression, ``a.b`` for ``b`` inside of ``a``.

    UsageError if two of them differ only in case, which duckdb ignores, or if one is inside the
    other.
    """
    columns = parse(text).columns if text else ()
    spelled: dict[str, str] = {}
    for path in columns:
        for length in range(1, len(path) + 1):
            name, whole = ".".join(path[:length]), ".".join(path)
            other = spelled.setdefault(name.lower(), name)
            if other != name or (name != whole and path[:length] in columns):
                raise UsageError(
                    f"{option('where')} {text!r} names {other} and {whole}: DuckDB cannot tell "
                    "them apart, or one is inside the other: name one of them"
                )
    return tuple(dict.fromkeys(".".join(path) for path in columns))


def connect(settings: Mapping[str, str]) -> Any:
    """A connection to a database in memory. UsageError if duckdb is missing."""
    with needs_extra("select"):
        import duckdb
    connection = duckdb.connect(":memory:", config=dict(settings))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def connect_closed() -> Any:
    """A connection without access to files, settings and extensions."""
    connection = connect(_CLOSED)
    connection.execute("SET lock_configuration = true")
    return connection


def _tree(connection: Any, text: str, shown: str) -> Any:
    """The tree of nodes into which duckdb parses an expression."""
    query = "SELECT json_serialize_sql(?), json_serialize_sql('SELECT (1)')"
    answers = connection.execute(query, [f"SELECT ({text}\n)"]).fetchone()
    parsed, plain = map(json.loads, answers)
    if parsed["error"]:
        raise UsageError(f"{shown} cannot be read: {parsed['error_message']}")
    nodes, others = ([one["node"] for one in both["statements"]] for both in (parsed, plain))
    trees, _ = (both[0].pop("select_list", ()) for both in (nodes, others))
    if nodes != others or len(trees) != 1:
        raise UsageError(f"{shown} is more than one expression; {_SCALAR}")
    return trees[0]


def _nodes(value: Any, names: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """All nodes of a tree, each with the parameters of the lambdas around it."""
    if isinstance(value, list):
        for one in value:
            yield from _nodes(one, names)
    elif isinstance(value, dict):
        if value.get("class") == "LAMBDA":
            parameters = [node for node, _ in _nodes(value["lhs"], names)]
            inside = {n["column_names"][0] for n in parameters if n.get("class") == "COLUMN_REF"}
            yield from _nodes(value["expr"], names | inside)
            return
        if "class" in value:
            yield value, names
        for one in value.values():
            yield from _nodes(one, names)


def describing(expression: str, table: str) -> str:
    """A query for the type of an expression; WHERE makes it fail for aggregates."""
    return f"DESCRIBE SELECT ({expression}\n) AS value FROM {table} WHERE ({expression}\n) IS NULL"


def check_boolean(kind: str, shown: str) -> None:
    """Raise UsageError for an expression whose values are not boolean."""
    if kind != "BOOLEAN":
        raise UsageError(f"{shown} gives {kind}, expected true or false: compare it with something")


def quoted(name: str) -> str:
    """The name of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as a literal in SQL."""
    return "'" + text.replace("'", "''") + "'"


def listed(columns: Mapping[str, Any]) -> str:
    """Columns with their types, for a message."""
    return ", ".join(f"{name} ({kind})" for name, kind in columns.items() if name) or "none"


def columns_there(connection: Any, table: str, hidden: str) -> dict[str, str]:
    """The names and types of a table's columns, without those whose names begin with ``hidden``."""
    rows = connection.execute(f"DESCRIBE {table}").fetchall()
    return {name: kind for name, kind, *_ in rows if not name.startswith(hidden)}

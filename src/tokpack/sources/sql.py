"""Expressions of DuckDB's SQL on the columns of one record, and what is wrong with them.

What is no function of the record alone is refused: subqueries, the time and chance here, aggregates
by duckdb, whose words say what else is wrong. Files and settings are closed to it.
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

# No threads, since workers are forked; nothing outside of the expression.
_CLOSED = {
    "threads": "1",
    "async_threads": "0",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_REFUSED = {"SUBQUERY": "a subquery", "STAR": "a star"}
# With no more arguments than these they depend on the time, which duckdb does not tell.
_CLOCKS = {"age": 1}
# Functions, and macros made of them, that may give another value for the same arguments. Those on
# points in time depend on the time zone too, which is always UTC here.
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
    "NaN, which DuckDB takes for larger than any number, so that it passes score > 0.9: "
    "and not isnan(score) leaves it out"
)
_SCALAR = "it can be any scalar expression on the columns of one record"
_CASTS = dict.fromkeys(
    ("double", "float", "float8", "float4", "real", "decimal", "numeric"), "double"
) | dict.fromkeys(("varchar", "text", "string", "char", "bpchar"), "string")


@dataclass(frozen=True)
class Expression:
    """A ``where`` that can be parsed, and what it needs.

    ``columns`` are the paths of the columns that it names: ``("meta", "lang")`` for ``meta.lang``.
    ``casts`` are the types that it gives to some of them itself, as in ``score::double``.
    ``asks_nan``: it has a function that tells NaN from numbers.
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


@functools.cache  # it takes a connection of duckdb
def parse(text: str, shown: str = "") -> Expression:
    """Read an expression. UsageError where it is none, or depends on more than the record.

    ``shown`` is what errors call it, for one that is not ``where``.
    """
    if not isinstance(text, str):
        raise UsageError(
            f"{shown or option('where')} is {brief(text)}; it is an expression in SQL, such as "
            f"'length(text) > 200'; a function of yours is given as {option('map')} of encode"
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
                    f"{shown} has {name}(), which gives another value each time: a dataset has to "
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

    UsageError where two of them differ only in case, which duckdb takes for one, or where one is
    inside of the other.
    """
    columns = parse(text).columns if text else ()
    spelled: dict[str, str] = {}
    for path in columns:
        for length in range(1, len(path) + 1):
            name, whole = ".".join(path[:length]), ".".join(path)
            other = spelled.setdefault(name.lower(), name)
            if other != name or (name != whole and path[:length] in columns):
                raise UsageError(
                    f"{option('where')} {text!r} names {other} and {whole}, which DuckDB takes for "
                    "one column, or one of which is inside of the other: name one of them"
                )
    return tuple(dict.fromkeys(".".join(path) for path in columns))


def connect(settings: Mapping[str, str]) -> Any:
    """A database in memory. UsageError where duckdb is missing."""
    with needs_extra("select"):
        import duckdb
    connection = duckdb.connect(":memory:", config=dict(settings))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def connect_closed() -> Any:
    """One that knows no more than its expressions."""
    connection = connect(_CLOSED)
    connection.execute("SET lock_configuration = true")
    return connection


def _tree(connection: Any, text: str, shown: str) -> Any:
    """What duckdb makes of an expression, as a tree of nodes."""
    query = "SELECT json_serialize_sql(?), json_serialize_sql('SELECT (1)')"
    answers = connection.execute(query, [f"SELECT ({text}\n)"]).fetchone()
    parsed, plain = map(json.loads, answers)
    if parsed["error"]:
        raise UsageError(f"{shown} cannot be read: {parsed['error_message']}")
    nodes, others = ([one["node"] for one in both["statements"]] for both in (parsed, plain))
    trees, _ = (both[0].pop("select_list", ()) for both in (nodes, others))
    if nodes != others or len(trees) != 1:
        raise UsageError(f"{shown} is more than an expression; {_SCALAR}")
    return trees[0]


def _nodes(value: Any, names: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """All nodes of a tree, with the names of the parameters of the lambdas around each."""
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
    """A query for the type of an expression, which fails for a sum: WHERE has values of a row."""
    return f"DESCRIBE SELECT ({expression}\n) AS value FROM {table} WHERE ({expression}\n) IS NULL"


def check_boolean(kind: str, shown: str) -> None:
    """UsageError for an expression that gives values of another type."""
    if kind != "BOOLEAN":
        raise UsageError(
            f"{shown} gives {kind}, and is to be true or false: compare it with something"
        )


def quoted(name: str) -> str:
    """A name of a column as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def listed(columns: Mapping[str, Any]) -> str:
    """Columns with their types, for a message."""
    return ", ".join(f"{name} ({kind})" for name, kind in columns.items() if name) or "none"


def columns_there(connection: Any, table: str, hidden: str) -> dict[str, str]:
    """Names and types of the columns of a table; not of those whose names begin with ``hidden``."""
    rows = connection.execute(f"DESCRIBE {table}").fetchall()
    return {name: kind for name, kind, *_ in rows if not name.startswith(hidden)}

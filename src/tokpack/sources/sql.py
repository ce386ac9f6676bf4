"""Expressions of DuckDB's SQL on the columns of one record, and what is wrong with them.

What is no function of the record alone is refused: subqueries, aggregates, the time, chance. Files
and settings are closed to it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import UsageError, needs_extra, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# No threads, since workers are forked; nothing outside of the expression.
_CLOSED = {
    "threads": "1",
    "async_threads": "0",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_REFUSED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "PARAMETER": "a parameter",
    "STAR": "a star",
    "DEFAULT": "DEFAULT",
}
# What is written as the name of a column, in the definitions of duckdb's macros.
_NOW = ("current_timestamp", "current_date", "current_time", "localtime", "localtimestamp")
# With no more arguments than these they depend on the time, which duckdb does not tell.
_CLOCKS = {"age": 1, "current_localtime": 0, "current_localtimestamp": 0}
_OF_NAN = ("isnan", "isfinite", "isinf")
NAN = (
    "NaN, which DuckDB takes for larger than any number, so that it passes score > 0.9: "
    "and not isnan(score) leaves it out"
)
_ZONED = ("TIMESTAMPTZ", "WITH TIME ZONE")  # in the names of types
_SCALAR = "it can be any scalar expression on the columns of one record"
_NUMBERS = ("double", "float", "float8", "float4", "real", "decimal", "numeric")
_TEXTS = ("varchar", "text", "string", "char", "bpchar")


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
    shown = _shown(text, shown)
    connection = connect_closed()
    try:
        tree = _tree(connection, text, shown)
        columns: dict[tuple[str, ...], None] = {}
        casts: dict[tuple[str, ...], str] = {}
        functions: set[str] = set()
        for node, names in _nodes(tree, frozenset()):
            kind = node.get("class")
            if kind in _REFUSED:
                raise UsageError(f"{shown} has {_REFUSED[kind]}; {_SCALAR}")
            if kind == "FUNCTION":
                name = node["function_name"].lower()
                functions.add(name)
                if len(node["arguments"]) <= _CLOCKS.get(name, -1):
                    raise _changing(shown, f"{name}()")
            if kind == "COLUMN_REF" and node["column_names"][0] not in names:
                columns[tuple(node["column_names"])] = None
            if kind == "CAST" and node["child"].get("class") == "COLUMN_REF":
                name = str(node.get("type_expr", {}).get("type_name", "")).lower()
                kinds = [*dict.fromkeys(_NUMBERS, "double").items()]
                kinds += dict.fromkeys(_TEXTS, "string").items()
                if (cast := dict(kinds).get(name)) is not None:
                    casts[tuple(node["child"]["column_names"])] = cast
        for path in columns:
            if any(path[:length] in columns for length in range(1, len(path))):
                raise UsageError(
                    f"{shown} names {'.'.join(path)} and what it is inside of: name one of them"
                )
        for name in sorted(functions):
            _check_function(connection, shown, name)
    finally:
        connection.close()
    return Expression(text, tuple(columns), casts, not functions.isdisjoint(_OF_NAN))


def _shown(text: object, shown: str) -> str:
    """What errors call an expression. UsageError for what is plainly none."""
    if not isinstance(text, str):
        raise UsageError(
            f"{shown or option('where')} is {brief(text)}; it is an expression in SQL, such as "
            f"'length(text) > 200'; a function of yours is given as {option('map')} of encode"
        )
    if not text.strip():
        raise UsageError(f"{shown or option('where')} is empty: {_SCALAR}")
    return shown or f"{option('where')} {text!r}"


def columns_of(text: str | None) -> tuple[str, ...]:
    """The names of the columns of an expression, ``a.b`` for ``b`` inside of ``a``.

    UsageError where two of them differ only in case, which duckdb takes for one.
    """
    columns = parse(text).columns if text else ()
    spelled: dict[tuple[str, ...], tuple[str, ...]] = {}
    for path in columns:
        for length in range(1, len(path) + 1):
            name = path[:length]
            other = spelled.setdefault(tuple(part.lower() for part in name), name)
            if other != name:
                raise UsageError(
                    f"{option('where')} {text!r} names {'.'.join(other)} and {'.'.join(name)}, "
                    "which DuckDB takes for one column: name one of them"
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


def _tree(connection: Any, text: str, shown: str) -> dict[str, Any]:
    """What duckdb makes of an expression, as a tree of nodes."""
    answer = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({text}\n)"]).fetchone()
    parsed = json.loads(answer[0])
    if parsed["error"]:
        where = int(parsed.get("position") or 0) - len("SELECT (")
        is_inside = 0 <= where < len(text) and repr(text) in shown
        near = f", at character {where + 1}" if is_inside else ""
        raise UsageError(f"{shown} cannot be read: {parsed['error_message']}{near}")
    statements = parsed["statements"]
    node = statements[0]["node"]
    is_one = len(statements) == 1 and node.get("type") == "SELECT_NODE"
    if (
        not is_one
        or len(node["select_list"]) != 1
        or node["from_table"]["type"] != "EMPTY"
        or node["modifiers"]
        or any(node[part] for part in ("where_clause", "having", "qualify", "group_expressions"))
    ):
        raise UsageError(f"{shown} is more than an expression; {_SCALAR}")
    tree: dict[str, Any] = node["select_list"][0]
    return tree


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


def _check_function(connection: Any, what: str, name: str, within: Sequence[str] = ()) -> None:
    """UsageError where a function gives more than one value for the same arguments."""
    overloads = connection.execute(
        "SELECT DISTINCT function_type, stability, macro_definition, parameter_types, return_type "
        "FROM duckdb_functions() WHERE function_name = ?",
        [name],
    ).fetchall()
    types = {overload[0] for overload in overloads}
    shown = f"{within[0]}()" if within else f"{name}()"
    if types and not types & {"scalar", "macro"}:
        kind = "a function of several records" if "aggregate" in types else "no scalar function"
        raise UsageError(f"{what} has {shown}, {kind}; {_SCALAR}")
    if any(_is_changing(overload[1], *overload[3:]) for overload in overloads):
        raise _changing(what, shown)
    for kind, _, definition, _, _ in overloads:
        if kind == "macro" and definition and name not in within:
            for node, _ in _nodes(_tree(connection, definition, what), frozenset()):
                inner = node.get("function_name") or (node.get("column_names") or [""])[0]
                if inner.lower() in _NOW:
                    raise _changing(what, shown)
                if inner:
                    _check_function(connection, what, inner.lower(), (*within, name))


def _is_changing(stability: str | None, parameters: Sequence[str], result: str) -> bool:
    """Whether an overload may give another value for the same arguments.

    Those on points in time depend on the time zone too, which is always UTC here.
    """
    if stability in (None, "CONSISTENT"):
        return False
    in_time = any(zoned in kind for kind in (*parameters, result) for zoned in _ZONED)
    return stability != "CONSISTENT_WITHIN_QUERY" or not (parameters and in_time)


def _changing(what: str, shown: str) -> UsageError:
    return UsageError(
        f"{what} has {shown}, which gives another value each time: a dataset "
        "has to be the same whenever and wherever it is made"
    )


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


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

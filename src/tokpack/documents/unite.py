"""The tables of several datasets as one for duckdb: a column has one type in all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, option
from tokpack.indexed.table import TableReader, import_parquet
from tokpack.sources.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_NUMBERS = {"int64", "double"}


def nulls_of_tables(
    tables: Sequence[str], names: Sequence[str], named: Mapping[str, str]
) -> list[dict[str, str]]:
    """Columns of nothing but null in each table, with the type that others have for them.

    ``names`` are those of the datasets, ``named`` the columns that matter, and the option that
    names each. UsageError where one of these is text in some tables and something else in others.
    """
    schemas = [import_parquet().parquet.read_schema(path) for path in tables]
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
                f"{option(named[column])} names the column {column}, which is of several types: "
                f"{shown}; select from these one by one, then from the views together"
            )
    return nulls


def with_types(nulls: Mapping[str, str]) -> str:
    """What a query has behind its ``*`` to give columns of nothing but null another type."""
    columns = ", ".join(f"NULL::{kind} AS {quoted(name)}" for name, kind in nulls.items())
    return f"REPLACE ({columns})" if columns else ""


def _kind(schema: Any, column: str) -> str:
    kind = str(schema.field(column).type)
    return "string" if kind.startswith("dictionary") else kind


def _go_together(kinds: Collection[str]) -> bool:
    different = set(kinds)
    return len(different) < 2 or different <= _NUMBERS

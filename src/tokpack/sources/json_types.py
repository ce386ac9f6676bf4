"""The types of JSON values as columns: one for each key, and columns cast to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokpack.sources.records import value_at
from tokpack.sources.values import json_text, objects_of, of_objects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokpack.sources.values import Values

Records = Sequence[Mapping[str, Any]]

_INT64 = range(-(1 << 63), 1 << 63)
_SHOWN = 60  # characters of a value


def types_of(records: Iterable[Mapping[str, Any]], names: Sequence[str] | None) -> dict[str, str]:
    """The type of each column of JSON records; ``names`` None: of all keys, in order."""
    seen: dict[str, set[str]] = {name: set() for name in names or ()}
    for record in records:
        for name in record if names is None else names:
            value = value_at(record, name) if names is not None else record[name]
            seen.setdefault(name, set()).add(_type_of(value))
    return {name: widest_type(kinds - {"null"}) for name, kinds in seen.items()}


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if value in _INT64 else "double"
    if isinstance(value, float):
        return "double"
    return "string" if isinstance(value, str) else "nested"


def widest_type(kinds: set[str]) -> str:
    """The type of a column whose values are of ``kinds``: these types, and "nested"."""
    if kinds == {"int64", "double"}:
        return "double"
    return next(iter(kinds)) if len(kinds) == 1 and "nested" not in kinds else "string"


def json_columns(
    records: Records, types: Mapping[str, str]
) -> tuple[dict[str, Any], dict[int, str]]:
    """Columns of JSON records, and why some records have a value that is of another type."""
    columns: dict[str, Any] = {}
    bad: dict[int, str] = {}
    for name, kind in types.items():
        values = of_objects([value_at(record, name) for record in records])
        columns[name], wrong = cast(values, kind, name)
        bad = {**wrong, **bad}
    return columns, bad


def cast(column: Values, kind: str, name: str) -> tuple[Values, dict[int, str]]:
    """A column of JSON values in a type; null, and why, by index, where a value is not of it."""
    import pyarrow

    goal, kind_now = pyarrow.type_for_alias(kind), str(column.type)
    if kind_now == kind:
        return column, {}
    if kind_now == "null" or (kind_now, kind) in (("large_string", "string"), ("int64", "double")):
        return column.cast(goal, safe=False), {}
    values, bad = objects_of(column), {}
    for index, value in enumerate(values):
        try:
            values[index] = None if value is None else _converted(value, kind, name)
        except ValueError as error:
            values[index], bad[index] = None, str(error)
    return pyarrow.array(values, goal), bad


def _converted(value: Any, kind: str, name: str) -> Any:
    """A value in the type of its column. ValueError with the reason where it is of no such type."""
    if kind == "string":
        text = value if isinstance(value, str) else json_text(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            escape = f"\\u{ord(text[error.start]):04x}"
            raise ValueError(f"lone surrogate {escape} in '{name}'") from None
        return text
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "double" and is_number:
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if (kind == "bool" and isinstance(value, bool)) or (
        kind == "int64" and isinstance(value, int) and is_number and value in _INT64
    ):
        return value
    shown = json_text(value)
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
    raise ValueError(f"'{name}' is {shown}, and in the first records it is of type {kind}")

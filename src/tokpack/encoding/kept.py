"""The values that ``keep`` asks for: columns of one Arrow type, however an input is cut.

A worker turns the values of a batch into an Arrow record batch and counts what kinds they are. The
counts of all batches decide the type of a column, and only then are its values turned into that. So
a batch keeps what decides nothing yet: one that has values of several kinds keeps their JSON texts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack import _core
from tokpack.errors import UsageError, option
from tokpack.indexed.table import COLUMNS, import_parquet
from tokpack.indexed.table_writer import arrow_type
from tokpack.sources.json_types import widest_type
from tokpack.sources.values import JsonValues, json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.sources.values import Values

# What is counted of each column; others are lists, objects, and integers beyond 64 bits.
KINDS = ("booleans", "integers", "doubles", "strings", "others")
_BOOLEANS, _INTEGERS, _DOUBLES, _STRINGS, _OTHERS = range(len(KINDS))
_TYPES = ("bool", "int64", "double", "string", "nested")  # of a column of one of KINDS
_KIND_OF_TYPE = {
    "bool": _BOOLEANS,
    "int64": _INTEGERS,
    "double": _DOUBLES,
    "string": _STRINGS,
    "large_string": _STRINGS,
}
_PYTHON_TYPES = {bool: "bool", int: "int64", float: "double", str: "large_string"}
_JSON = {b"json": b"1"}  # marks a column of JSON texts
_LEAST, _MOST = -(2**63), 2**63 - 1

ALL = "all"  # in place of keys: all columns that are small

Counts = list[int]


def parse_keep(texts: Sequence[str]) -> dict[str, str]:
    """Names of columns and the keys of their values, from ``key`` or ``name=key``. UsageError."""
    kept: dict[str, str] = {}
    for text in texts:
        name, equals, key = text.partition("=")
        key = key if equals else name
        if not name or not key:
            raise UsageError(f"{option('keep')} has {text!r}: give a key, or NAME=KEY")
        if name in COLUMNS:
            raise UsageError(
                f"{option('keep')} has {name!r}, a column that the table has of its own: give "
                f"another name, as in {option('keep', f'{name}_=' + key)}"
            )
        if name in kept:
            raise UsageError(
                f"{option('keep')} has {name!r} twice: give one another name, NAME=KEY"
            )
        kept[name] = key
    return kept


def column_type(counts: Sequence[int]) -> str:
    """The type of a column with so many values of each of KINDS."""
    return widest_type({kind for kind, count in zip(_TYPES, counts, strict=True) if count})


# -- what a worker writes ----------------------------------------------------------------------


def pack(columns: Sequence[Values | None], rows: int) -> tuple[bytes, Counts]:
    """A record batch of columns (None: nothing but nulls) as an Arrow stream; counts by column."""
    arrow = import_parquet()
    arrays, fields, counts = [], [], list[int]()
    for number, values in enumerate(columns):
        array, is_json, own = _typed(arrow.nulls(rows) if values is None else values)
        arrays.append(array)
        fields.append(arrow.field(str(number), array.type, metadata=_JSON if is_json else None))
        counts += own
    schema = arrow.schema(fields)
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(arrow.record_batch(arrays, schema=schema))
    return sink.getvalue().to_pybytes(), counts


def _typed(values: Values) -> tuple[Any, bool, Counts]:
    """An Arrow array of values, whether it is of their JSON texts, and how many are of each kind.

    The array is bool, int64, double, string, large_string or null.
    """
    arrow = import_parquet()
    counts = [0] * len(KINDS)
    if isinstance(values, JsonValues) and (array := _read_by_core(values)) is not None:
        values = array
    if isinstance(values, arrow.Array):
        if str(values.type) == "null":
            return values, False, counts
        if str(values.type) in _KIND_OF_TYPE:
            counts[_KIND_OF_TYPE[str(values.type)]] = len(values) - values.null_count
            return values, False, counts
        values = values.to_pylist()
    objects = values.objects() if isinstance(values, JsonValues) else values
    types = set(map(type, objects)) - {type(None)}
    if not types:
        return arrow.nulls(len(objects)), False, counts
    if len(types) == 1 and (kind := _PYTHON_TYPES.get(types.pop())):
        try:
            array = arrow.array(objects, arrow_type(kind))
        except (arrow.ArrowException, OverflowError, ValueError):
            pass  # an integer beyond 64 bits, a lone surrogate
        else:
            counts[_KIND_OF_TYPE[kind]] = len(array) - array.null_count
            return array, False, counts
    texts = []
    for value in (one.item() if isinstance(one, np.generic) else one for one in objects):
        if value is not None:
            counts[_kind(value)] += 1
        texts.append(None if value is None else _text(value))
    return arrow.array(texts, arrow.large_string()), True, counts


def _read_by_core(values: JsonValues) -> Any:
    """An Arrow array of JSON texts, as nearly all columns have them; None where it takes more."""
    arrow = import_parquet()
    kind, nulls, *buffers = _core.json_column(values.data, values.spans)
    if kind == "mixed":
        return None
    if kind == "null":
        return arrow.nulls(len(values))
    validity, offsets, data = map(arrow.py_buffer, buffers)
    layout = [validity, offsets, data] if kind == "string" else [validity, data]
    return arrow.Array.from_buffers(arrow_type(kind), len(values), layout, nulls)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOLEANS
    if isinstance(value, int):
        return _INTEGERS if _LEAST <= value <= _MOST else _OTHERS
    if isinstance(value, float):
        return _DOUBLES
    if isinstance(value, list | tuple | dict):
        return _OTHERS
    return _STRINGS  # also dates and the like, as their str()


def _text(value: Any) -> str:
    return json_text(value).encode("utf-8", "replace").decode()


# -- what the commit reads ---------------------------------------------------------------------


def unpack(file: Any, types: Sequence[str]) -> Iterator[list[Any]]:
    """The columns of one record batch after the other in an open file, turned into ``types``."""
    arrow = import_parquet()
    while True:
        reader = arrow.ipc.open_stream(file)
        for batch in reader:
            yield [
                _turned(batch.column(number), bool(field.metadata), kind)
                for number, (field, kind) in enumerate(zip(batch.schema, types, strict=True))
            ]


def _turned(array: Any, is_json: bool, kind: str) -> Any:
    """Values as an array of the type of their column."""
    arrow = import_parquet()
    goal = arrow_type(kind)
    plain = str(array.type)
    if not is_json and plain == kind:
        return array  # a cast would load pyarrow.compute
    if not is_json and (plain == "null" or (plain, kind) == ("large_string", "string")):
        return array.cast(goal)
    if not is_json and kind == "double":
        return array.cast(goal, safe=False)
    objects = array.to_pylist()
    if is_json and kind == "string":
        return arrow.array([_unquoted(text) for text in objects], goal)
    if is_json:
        objects = [None if text is None else json.loads(text) for text in objects]
        return arrow.array([None if one is None else float(one) for one in objects], goal)
    return arrow.array([None if one is None else _text(one) for one in objects], goal)


def _unquoted(text: str | None) -> str | None:
    """A string as it is, any other value as its JSON text."""
    return json.loads(text) if text is not None and text.startswith('"') else text

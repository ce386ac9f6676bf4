"""The values that ``keep`` requests: columns with one Arrow type each, however inputs are cut.

A worker writes the values of a batch as an Arrow record batch, and counts their kinds. The type of
a column depends on the counts of all batches, so values are converted at the end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokpack.dataset.table import OWN, arrow_type, import_parquet
from tokpack.errors import UsageError, option
from tokpack.sources import (
    as_text,
    is_json,
    objects_of,
    of_objects,
    of_texts,
    python_values,
    widest_type,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.sources import Values

# Kinds of values; "others" are lists, objects, and integers of more than 64 bits.
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
_LEAST, _MOST, _MOST_DIGITS = -(2**63), 2**63 - 1, 20

ALL = "all"  # instead of keys: all columns that are small

Counts = list[int]


def parse_keep(texts: Sequence[str]) -> dict[str, str]:
    """The names of columns and the keys of their values, from ``key`` or ``name=key``.

    A ``?`` may follow: see ``required``. UsageError.
    """
    kept: dict[str, str] = {}
    for text in texts:
        name, equals, key = text.removesuffix("?").partition("=")
        key = key if equals else name
        if not name or not key:
            raise UsageError(f"{option('keep')} has {text!r}: give a key, or NAME=KEY")
        if name.lower().startswith(OWN):
            raise UsageError(
                f"{option('keep')} has {name!r}, but names that begin with {OWN} are reserved: "
                f"give another name, as in {option('keep', f'{name[len(OWN) :]}=' + key)}"
            )
        if name in kept:
            raise UsageError(
                f"{option('keep')} has {name!r} twice: give one another name, NAME=KEY"
            )
        kept[name] = key
    return kept


def required(texts: Sequence[str]) -> list[str]:
    """The keys that some of the first records must have: those without ``?`` at the end."""
    return list(parse_keep([one for one in texts if not one.endswith("?") and one != ALL]).values())


def column_type(counts: Sequence[int]) -> str:
    """The type of a column with this number of values of each of KINDS."""
    return widest_type({kind for kind, count in zip(_TYPES, counts, strict=True) if count})


# -- what a worker writes ----------------------------------------------------------------------


def pack(columns: Sequence[Values | None], rows: int) -> tuple[bytes, Counts]:
    """An Arrow stream with one record batch of columns, and their counts; None for only nulls."""
    arrow = import_parquet()
    arrays = [arrow.nulls(rows) if values is None else _plain(values) for values in columns]
    counts = [count for array in arrays for count in _counts(array)]
    batch = arrow.record_batch(arrays, names=list(map(str, range(len(arrays)))))
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes(), counts


def _plain(values: Values) -> Values:
    """The column, as Python values if its Arrow type is not one of KINDS."""
    kind = str(values.type)
    is_plain = kind in _KIND_OF_TYPE or kind == "null" or is_json(values)
    return values if is_plain else of_objects(python_values(values))


def _counts(values: Values) -> Counts:
    """The number of values of each of KINDS in a column."""
    counts = [0] * len(KINDS)
    if is_json(values):
        for text in values.to_pylist():
            if text is not None:
                counts[_kind_of_json(text)] += 1
    elif str(values.type) != "null":
        counts[_KIND_OF_TYPE[str(values.type)]] = len(values) - values.null_count
    return counts


def _kind_of_json(text: bytes) -> int:
    if text in (b"true", b"false"):
        return _BOOLEANS
    if text[:1] in (b'"', b"[", b"{"):
        return _STRINGS if text[:1] == b'"' else _OTHERS
    if not text.removeprefix(b"-").isdigit():
        return _DOUBLES
    is_long = len(text) > _MOST_DIGITS or not _LEAST <= int(text) <= _MOST
    return _OTHERS if is_long else _INTEGERS


# -- what the commit reads ---------------------------------------------------------------------


def unpack(file: Any, types: Sequence[str]) -> Iterator[list[Any]]:
    """The columns of each record batch in an open file, converted to ``types``."""
    arrow = import_parquet()
    while True:
        reader = arrow.ipc.open_stream(file)
        for batch in reader:
            yield [_turned(column, kind) for column, kind in zip(batch.columns, types, strict=True)]


def _turned(array: Values, kind: str) -> Values:
    """Values as an array of the type of their column."""
    goal = arrow_type(kind)
    if array.null_count == len(array):
        return import_parquet().nulls(len(array), goal)
    if is_json(array) and kind != "string":
        number = float if kind == "double" else lambda one: one
        array = of_objects([None if one is None else number(one) for one in objects_of(array)])
    plain = str(array.type)
    if plain == kind:
        return array  # a cast would load pyarrow.compute
    if kind == "double" or plain == "large_string":
        return array.cast(goal, safe=False)
    texts = array.to_pylist()
    if not is_json(array):
        texts = [None if value is None else as_text(value) for value in texts]
    return of_texts([None if text is None else _unquoted(text) for text in texts], kind)


def _unquoted(text: bytes) -> bytes:
    """The text of a value: a string as it is, any other value as JSON."""
    return json.loads(text).encode("utf-8", "replace") if text.startswith(b'"') else text

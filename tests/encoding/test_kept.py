"""Kept values: the same column whatever they are read from, and however they are cut."""

from __future__ import annotations

import datetime
import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpack.sources.base import Limits
from tokpack.sources.iterables import DocumentReader
from tokpack.sources.records import JsonLinesParser

arrow = pytest.importorskip("pyarrow")

from support.table_twin import column_twin, value_in  # noqa: E402

from tokpack.encoding.kept import KINDS, column_type, pack, unpack  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.sources import Documents

KEYS = ["id", "meta", "meta.a", "a.b", "none", "text"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KINDS_OF_VALUES = [
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.integers(2**63, 2**70),
    st.lists(st.integers(0, 3) | TEXTS, max_size=2),
    st.dictionaries(st.sampled_from(["a", "b"]), TEXTS | st.booleans(), max_size=2),
]
NAMES = {int: "int64", float: "double", bool: "bool", str: "string"}
# Mostly a key has values of one kind, or of two: a type has to be found for them all.
COLUMN = st.lists(st.sampled_from(KINDS_OF_VALUES), min_size=1, max_size=2).map(
    lambda kinds: st.one_of(st.none(), *kinds)
)


@st.composite
def batches_of_records(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Records in batches, each with a text."""
    values = {name: draw(COLUMN) for name in ("id", "a.b")}
    values["meta"] = draw(COLUMN) | st.dictionaries(st.just("a"), draw(COLUMN), max_size=1)
    optional: dict[str, Any] = values
    record = st.fixed_dictionaries({"text": TEXTS}, optional=optional)
    return draw(st.lists(st.lists(record, max_size=5), min_size=1, max_size=4))


def of_lines(records: Sequence[dict[str, Any]]) -> Documents:
    """The documents of a block of JSON lines, with escapes in every other one."""
    lines = [json.dumps(one, ensure_ascii=n % 2 == 0) + "\n" for n, one in enumerate(records)]
    slow = [
        line.replace('"id"', '"\\u0069d"') if n % 3 == 2 else line for n, line in enumerate(lines)
    ]
    block = memoryview("".join(slow).encode())
    return JsonLinesParser(["text"], KEYS).parse(block, 0).documents["text"]


def of_objects(records: Sequence[dict[str, Any]]) -> Documents:
    """The documents of mappings of Python."""
    reader = DocumentReader("mappings", iter(records))
    [segment] = filter(None, reader.segments(["text"], 1 << 30, Limits(1 << 30, 99), None, KEYS))
    return segment.batches[0].documents["text"] if segment.batches else of_lines([])


def of_table(table: Any) -> Documents:
    """The documents of a table of Arrow."""
    reader = DocumentReader("table", table.to_batches(), as_tables=True)
    [segment] = filter(None, reader.segments(["text"], 1 << 30, Limits(1 << 30, 99), None, KEYS))
    return segment.batches[0].documents["text"] if segment.batches else of_lines([])


def kept(batches: Sequence[Documents]) -> Iterator[tuple[str, str, list[Any]]]:
    """Name, type and values of each column, as a commit reads what workers have written."""
    written, totals = b"", np.zeros((len(KEYS), len(KINDS)), np.int64)
    for documents in batches:
        columns = [documents.columns.get(name) for name in KEYS]
        stream, counts = pack(columns, len(documents))
        written += stream
        totals += np.array(counts).reshape(totals.shape)
    types = [column_type(counts.tolist()) for counts in totals]
    values: list[list[Any]] = [[] for _ in KEYS]
    for columns in islice(unpack(arrow.BufferReader(written), types), len(batches)):
        for own, kind, array in zip(values, types, columns, strict=True):
            assert str(array.type) == kind
            own.extend(array.to_pylist())
    yield from zip(KEYS, types, values, strict=True)


@pytest.mark.parametrize("read", [of_lines, of_objects])
@settings(max_examples=60, deadline=None)
@given(batches=batches_of_records(), drop=st.booleans())
def test_values_of_json_and_of_python(read: Any, batches: list[Any], drop: bool) -> None:
    documents = [read(records) for records in batches]
    if drop:  # as a bad record, or one without a token
        documents = [one.select(np.arange(len(one)) % 2 == 0) for one in documents]
        batches = [records[::2] for records in batches]
    records = [record for some in batches for record in some]
    for name, kind, values in kept(documents):
        expected = column_twin([record.get(name, value_in(record, name)) for record in records])
        assert values == expected, name
        types = {type(one) for one in expected} - {type(None)}
        assert kind == (NAMES[types.pop()] if types else "string")


DAYS = st.dates(datetime.date(1970, 1, 1), datetime.date(2100, 1, 1))
ARROW = {
    "int8": st.integers(-128, 127),
    "uint64": st.integers(0, 2**64 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "bool_": st.booleans(),
    "date32": DAYS,
    "binary": st.binary(max_size=3),
    "string": TEXTS,
    "large_string": TEXTS,
    "string_view": TEXTS,
}


@st.composite
def columns_of_arrow(draw: st.DrawFn) -> tuple[Any, int, int]:
    """A table with columns of many types, and a slice of it."""
    count = draw(st.integers(0, 6))
    arrays: dict[str, Any] = {
        "text": arrow.array(draw(st.lists(TEXTS, min_size=count, max_size=count)))
    }
    for name in ("id", "a.b", "meta"):
        kind = draw(st.sampled_from(sorted(ARROW)))
        value = st.none() | ARROW[kind]
        shape = draw(st.sampled_from(["plain", "list", "struct", "dictionary"]))
        goal = getattr(arrow, kind)()
        if shape == "list":
            value, goal = st.none() | st.lists(value, max_size=2), arrow.list_(goal)
        elif shape == "struct":
            value, goal = st.none() | st.fixed_dictionaries({"a": value}), arrow.struct({"a": goal})
        values = draw(st.lists(value, min_size=count, max_size=count))
        arrays[name] = arrow.array(values, goal)
        if shape == "dictionary" and kind == "string":
            arrays[name] = arrays[name].dictionary_encode()
    begin, end = sorted(draw(st.tuples(st.integers(0, count), st.integers(0, count))))
    return arrow.table(arrays), begin, end


@settings(max_examples=60, deadline=None)
@given(given=columns_of_arrow())
def test_values_of_a_table(given: tuple[Any, int, int]) -> None:
    """They are those of the same rows as mappings."""
    table, begin, end = given
    rows = table.slice(begin, end - begin)
    assert list(kept([of_table(rows)])) == list(kept([of_objects(rows.to_pylist())]))

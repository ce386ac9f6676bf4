"""Columns beside the texts of documents stay aligned with them."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokpack import _core
from tokpack.sources import Documents, Part, discover, read
from tokpack.sources.records import JsonLinesParser, record_of, value_at
from tokpack.sources.rows import WholeRecords, json_parser
from tokpack.sources.values import ContentHash, compact, objects_of, of_json, of_objects

arrow = pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from pathlib import Path


def test_selected_documents_keep_their_values() -> None:
    texts = np.frombuffer(b"abcd", np.uint8)
    documents = Documents(texts, np.stack([np.arange(4), np.arange(1, 5)], 1), np.arange(4))
    data, spans = b'1"b"{"c":3}', np.array([[0, 1], [1, 4], [4, 4], [4, 11]])
    documents.columns = {
        "json": of_json(data, spans),
        "objects": of_objects([1, "b", None, {"c": 3}]),
        "arrow": arrow.array([1, None, 3, 4]),
    }
    chosen = documents.select(np.array([True, False, True, True]))
    assert [chosen.text(n) for n in range(3)] == [b"a", b"c", b"d"]
    assert chosen.lines.tolist() == [0, 2, 3]
    assert objects_of(chosen.columns["json"]) == [1, None, {"c": 3}]
    assert objects_of(chosen.columns["objects"]) == [1, None, {"c": 3}]
    assert objects_of(chosen.columns["arrow"]) == [1, 3, 4]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "a.b", "ä", "text"]), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = ["id", "meta", "meta.a", "a.b", "ä", 'q"', "text"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from([*KEYS, "x"]), VALUES, max_size=6), max_size=5))
def test_columns_of_json_lines_are_what_json_reads(records: list[dict[str, Any]]) -> None:
    columns = ["id", "meta", "meta.a", "a.b", "ä", 'q"', "text"]
    for number, record in enumerate(records):
        record["text"] = f"text {number}"
    ascii_too = [json.dumps(record, ensure_ascii=n % 2 == 0) for n, record in enumerate(records)]
    block = "".join(line + "\n" for line in ascii_too).encode()
    parsed = JsonLinesParser(["text"], columns).parse(memoryview(block), 0)
    documents = parsed.documents["text"]
    assert len(documents) == len(records)
    for column in columns:
        expected = [value_at(json.loads(line), column) for line in ascii_too]
        assert objects_of(documents.columns[column]) == expected


STRANGE = [
    b'{"a": 1, "a": {"b": 2}}',
    b'{"\\u0061": 1, "a": 2}',
    b'{"n": [%s, %s]}' % (b"7" * 200, b"7" * 299),
    b'{"n": %s}' % (b"7" * 400),
    b'{"n": -0.%s1e7}' % (b"0" * 400),
    b'{"n": %s}' % (b"7" * 5000),
    b'{"s": "%s"}' % (b"7" * 400),
    b'{"n": [1e400, -1E-400, -0, -0.0, 12345678901234567890.5, 1e+2, 18446744073709551616]}',
    b'{"n": 5e-324, "m": 2.2250738585072011e-308, "o": 0.1e-6, "p": 9007199254740993.0}',
    b'{"n": NaN}',
    b'{"n": 01}',
    b'{"s": "\\ud800"}',
    b'{"s": "\\ud83d\\ude00 \\/ \\u0000"}',
    b'{"s": "\x01"}',
    b'{"s": "\\x"}',
    b'{"s": "\xff"}',
    b'{"s": "a",}',
    b'{"deep": %s%s}' % (b"[" * 100, b"]" * 100),
    b"{} {}",
    b"{}",
    b'["a"]',
    b" \t",
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(STRANGE)
        | st.builds(
            lambda record, plain: json.dumps(record, ensure_ascii=plain).encode(),
            st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6),
            st.booleans(),
        ),
        max_size=8,
    )
)
@example(STRANGE)
def test_whole_records_are_what_json_reads(lines: list[bytes]) -> None:
    expected, wrong = [], []
    for number, line in enumerate(lines):
        if line == b"{} {}":  # each is a record
            expected += ["{}", "{}"]
            continue
        try:
            expected += [repr(record_of(line))] if line.strip() else []
        except ValueError as error:
            wrong.append((number, str(error)))
    parsed = json_parser(["text"], WholeRecords({})).parse(memoryview(b"\n".join(lines)), 0)
    assert list(map(repr, parsed.first.whole)) == expected
    assert [(bad.line, bad.reason) for bad in parsed.bad] == wrong


@pytest.mark.parametrize("level", _core.simd_levels())
def test_the_core_notes_the_last_of_two_values_and_none_of_a_slow_record(
    level: _core.Level,
) -> None:
    block = (
        b'{"id": 1, "text": "a", "id" : [2, {"id": 3}] }\n \n{"id": 5, "text": 3}\n{"text":"b"}\n'
    )
    extracted = _core.JsonLines("text", level, ["id", "text"]).extract(block)
    texts = [[block[a:b] for a, b in row] for row in extracted.values.tolist()]
    assert texts == [[b'[2, {"id": 3}]', b'"a"'], [b"", b""], [b"", b'"b"']]
    assert extracted.slow[:, 0].tolist() == [1]


def test_a_parquet_file_gives_plain_columns_of_those_that_it_has(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table(
        {
            "text": ["a", None, "c"],
            "n": arrow.array([1, 2, None], arrow.int8()),
            "meta": [{"score": 0.5}, {"score": None}, None],
            "day": [datetime.date(2024, 1, 2), None, None],
            "lang": arrow.array(["de", "en", "de"]).dictionary_encode(),
        }
    )
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path)
    [source] = discover([str(path)])
    names = ["n", "meta.score", "meta", "day", "lang", "none", "meta.none"]
    [batch] = read(source, Part(0, "whole", 0, 0, 0), ["text"], columns=names)
    columns = {name: one.to_pylist() for name, one in batch.documents["text"].columns.items()}
    assert columns == {
        "n": [1, None],
        "meta.score": [0.5, None],
        "meta": [{"score": 0.5}, None],
        "day": [datetime.date(2024, 1, 2), None],
        "lang": ["de", "de"],
    }


COLUMNS: dict[str, Any] = {
    "int16": st.integers(-9, 9),
    "float64": st.floats(allow_nan=False),
    "bool_": st.booleans(),
    "date32": st.dates(datetime.date(1970, 1, 1), datetime.date(2100, 1, 1)),
    "string": st.text(st.sampled_from("aé"), max_size=3),
    "large_binary": st.binary(max_size=3),
    "null": st.none(),
}


@st.composite
def arrays(draw: st.DrawFn, depth: int = 0) -> Any:
    """A type, and a strategy for its values."""
    shape = draw(st.sampled_from(["plain"] * 4 + ["list", "struct", "map"])) if depth < 2 else ""
    if shape in ("", "plain"):
        name = draw(st.sampled_from(sorted(COLUMNS)))
        return getattr(arrow, name)(), st.none() | COLUMNS[name]
    kind, values = draw(arrays(depth + 1))
    if shape == "list":
        return arrow.list_(kind), st.none() | st.lists(values, max_size=2)
    if shape == "map":
        pairs = st.lists(st.tuples(st.sampled_from("abc"), values), max_size=2, unique_by=repr)
        return arrow.map_(arrow.string(), kind), st.none() | pairs
    return arrow.struct({"a": kind}), st.none() | st.fixed_dictionaries({"a": values})


def hash_of(*pieces: Any) -> bytes:
    content = ContentHash()
    for piece in pieces:
        content.add("name", piece)
    return content.digest()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_hash_of_a_column_follows_from_its_values_alone(data: st.DataObject) -> None:
    kind, values = data.draw(arrays())
    some = data.draw(st.lists(values, min_size=1, max_size=8))
    at = data.draw(st.integers(0, len(some)))
    column = arrow.array(some, kind)
    around = arrow.array([some[-1], *some, some[0]], kind).slice(1, len(some))
    whole = hash_of(column)
    assert hash_of(around) == whole
    assert hash_of(compact(around)) == whole
    assert hash_of(around.slice(0, at), around.slice(at)) == whole
    other = data.draw(st.lists(values, max_size=8))
    if arrow.array(other, kind) != column:
        assert hash_of(arrow.array(other, kind)) != whole

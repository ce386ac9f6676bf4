"""Columns beside the texts of documents stay aligned with them."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpack import _core
from tokpack.sources import Documents, Part, discover, read
from tokpack.sources.records import JsonLinesParser, value_at
from tokpack.sources.values import JsonValues

if TYPE_CHECKING:
    from pathlib import Path


def test_selected_documents_keep_their_values() -> None:
    data = b'1"b"{"c":3}'
    spans = np.array([[0, 1], [1, 4], [4, 4], [4, 11]])
    columns = {"json": JsonValues(data, spans), "list": [1, "b", None, {"c": 3}]}
    texts = np.frombuffer(b"abcd", np.uint8)
    documents = Documents(texts, np.stack([np.arange(4), np.arange(1, 5)], 1), np.arange(4))
    documents.columns = columns
    chosen = documents.select(np.array([True, False, True, True]))
    assert [chosen.text(n) for n in range(3)] == [b"a", b"c", b"d"]
    assert chosen.lines.tolist() == [0, 2, 3]
    assert chosen.columns["json"].texts() == [b"1", b"null", b'{"c":3}']
    assert chosen.columns["list"] == [1, None, {"c": 3}]


def test_an_arrow_column_is_selected_too() -> None:
    arrow = pytest.importorskip("pyarrow")
    documents = Documents(np.zeros(0, np.uint8), np.zeros((3, 2), np.int64), np.arange(3))
    documents.columns = {"n": arrow.array([1, None, 3])}
    chosen = documents.select(np.array([False, True, True]))
    assert chosen.columns["n"].to_pylist() == [None, 3]


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
        values = documents.columns[column]
        assert isinstance(values, JsonValues)
        expected = [value_at(json.loads(line), column) for line in ascii_too]
        assert [json.loads(text) for text in values.texts()] == expected


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
    arrow = pytest.importorskip("pyarrow")
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
    columns = {
        name: one if isinstance(one, list) else one.to_pylist()
        for name, one in batch.documents["text"].columns.items()
    }
    assert columns == {
        "n": [1, None],
        "meta.score": [0.5, None],
        "meta": [{"score": 0.5}, None],
        "day": [datetime.date(2024, 1, 2), None],
        "lang": ["de", "de"],
    }

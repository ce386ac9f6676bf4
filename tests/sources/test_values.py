"""Columns beside the texts of documents stay aligned with them."""

from __future__ import annotations

import numpy as np
import pytest

from tokpack.sources import Documents
from tokpack.sources.values import JsonValues


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

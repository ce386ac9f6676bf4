"""The tables of datasets as Arrow: the rows of documents, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.table_tools import make_with_table, token_digest

import tokpack
from tokpack.dataset.table import COLUMNS, is_table
from tokpack.documents.write import write_view
from tokpack.errors import FormatError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [[1, 2, 3], [4], [], [5, 6]]


def test_a_row_for_each_document(tmp_path: Path) -> None:
    prefix = make_with_table(tmp_path / "one", ROWS, score=[0.5, None, 2.5, 3.5])
    dataset = tokpack.MMapIndexedDataset(prefix)
    table = dataset.table()
    assert isinstance(table, pa.Table)
    assert table.column_names == [*COLUMNS, "score"]
    assert table.num_rows == dataset.documents == 4
    assert table["tokens"].to_pylist() == [3, 1, 0, 2]
    assert table["tokens_xxh3"].to_pylist() == [token_digest(row) for row in ROWS]
    assert table["score"].to_pylist() == [0.5, None, 2.5, 3.5]
    assert dataset.table(["score", "line"]).column_names == ["score", "line"]
    assert dataset.table("line")["line"].to_pylist() == [1, 2, 3, 4]


def test_shards_in_their_order_with_the_columns_of_all(tmp_path: Path) -> None:
    make_with_table(tmp_path / "a", ROWS, score=[1, 2, 3, 4], only=["x"] * 4)
    make_with_table(tmp_path / "b", ROWS[:2], score=[0.5, 1.5])
    tokpack.merge([tmp_path / "a", tmp_path / "b", tmp_path / "a"], tmp_path / "all", virtual=True)
    table = tokpack.MMapIndexedDataset(tmp_path / "all").table()
    assert table["score"].to_pylist() == [1, 2, 3, 4, 0.5, 1.5, 1, 2, 3, 4]
    assert table["only"].to_pylist() == ["x"] * 4 + [None] * 2 + ["x"] * 4
    assert table["source"].to_pylist() == ["in.jsonl"] * 10
    assert table["tokens"].to_pylist() == [3, 1, 0, 2, 3, 1, 3, 1, 0, 2]
    make_with_table(tmp_path / "b", ROWS[:2], score=["low", "high"])
    tokpack.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all", virtual=True, overwrite=True)
    odd = tokpack.MMapIndexedDataset(tmp_path / "all")
    assert odd.table(["line"]).num_rows == 6
    with pytest.raises(UsageError, match=r"/all: .*\bscore\b"):
        odd.table()


def test_a_view_has_the_rows_of_its_documents(tmp_path: Path) -> None:
    a = make_with_table(tmp_path / "a", ROWS, score=[1, 2, 3, 4])
    b = make_with_table(tmp_path / "b", ROWS[::-1], score=[5, 6, 7, 8])
    datasets = [tokpack.MMapIndexedDataset(one) for one in (a, b)]
    chosen = np.array([7, 0, 0, 5, 2])
    write_view(tmp_path / "view", datasets, chosen, made_by={})
    view = tokpack.MMapIndexedDataset(tmp_path / "view")
    table = view.table()
    assert table["score"].to_pylist() == (chosen + 1).tolist()
    assert table["tokens"].to_pylist() == [len(view.document(n)) for n in range(5)]
    make_with_table(tmp_path / "a", ROWS[:2] * 2, score=[1, 2, 3, 4])
    with pytest.raises(FormatError, match="a"):
        tokpack.MMapIndexedDataset(tmp_path / "view").table()


def test_a_table_of_others_that_has_the_mark_in_a_value_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.docs.parquet"
    parquet.write_table(pa.table({"text": ["tokpack.table"] * 3}), path)
    assert not is_table(path)
    marked = pa.table({"text": ["a"]}).replace_schema_metadata({"tokpack.table": "{}"})
    parquet.write_table(marked, path)
    assert is_table(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert not is_table(path)

"""Tables that selections read and join: their paths, keys and types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

import pyarrow as pa
from support.table_tools import ids_of, make_with_table

import tokpack
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_paths_are_no_patterns(tmp_path: Path) -> None:
    where = tmp_path / "lang=xx" / "a[1]*?"
    where.mkdir(parents=True)
    make_with_table(where / "web[1]", [[1], [2], [3]], id=["a", "b", "c"], lang=["de", "en", "de"])
    make_with_table(where / "web1", [[4], [5], [6]], id=["a", "b", "c"], lang=["en", "de", "en"])
    tokpack.select(where / "web[1]", where / "good", where="lang = 'de'")
    assert ids_of(where / "good") == [[1], [3]]
    (where / "more1.csv").write_text("id,q\na,1\nb,1\nc,1\n")
    for suffix, text in ((".csv", "id,q\nb,1\n"), (".jsonl", '{"id": "b", "q": 1}\n')):
        table = where / f"more[1]{suffix}"
        table.write_text(text)
        choice: dict[str, Any] = {"join": table, "on": "id", "overwrite": True}
        tokpack.select(where / "web[1]", where / "good", where="q = 1 or lang = 'de'", **choice)
        assert ids_of(where / "good") == [[1], [2], [3]]
        tokpack.select(where / "web[1]", where / "good", where="q = 1", **choice)
        assert ids_of(where / "good") == [[2]]


def test_keys_of_text_are_joined_as_text(tmp_path: Path) -> None:
    web = make_with_table(tmp_path / "web", [[1], [2], [3]], id=["7", "007", "x"])
    (tmp_path / "q.csv").write_text("id,q\n007,1\n7,2\n")
    tokpack.select(web, tmp_path / "good", join=tmp_path / "q.csv", on="id", where="q = 1")
    assert ids_of(tmp_path / "good") == [[2]]
    (tmp_path / "q.jsonl").write_text('{"id": 7, "q": 1}\n')
    with pytest.raises(UsageError, match=r"^on id: .*VARCHAR .*BIGINT in .*q\.jsonl"):
        tokpack.select(web, tmp_path / "bad", join=tmp_path / "q.jsonl", on="id", where="q = 1")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_keys_that_look_like_something_else_are_text(tmp_path: Path, suffix: str) -> None:
    """As numbers or dates several spellings would be one key."""
    keys = ["2024-01-02", "2024-1-2", "2024-02-03"] if suffix == ".jsonl" else ["7", "70", "7.0"]
    make_with_table(tmp_path / "data", [[n] for n in range(3)], id=keys)
    rows = [{"id": keys[n], "q": n} for n in (0, 2)]
    text = "id,q\n" + "".join(f"{row['id']},{row['q']}\n" for row in rows)
    if suffix == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / f"scores{suffix}").write_text(text)
    tokpack.select(tmp_path / "data", tmp_path / "view", join=tmp_path / f"scores{suffix}",
                   on="id", where="q >= 0")  # fmt: skip
    assert ids_of(tmp_path / "view") == [[0], [2]]


def test_columns_of_several_types(tmp_path: Path) -> None:
    """Numbers go together, and with a column of nothing but null, which is a string; texts not."""
    values = {"a": [0.5, 0.9], "b": [1, 0], "c": [None, None], "d": ["0.8", "high"]}
    prefixes = []
    for number, (name, scores) in enumerate(values.items()):
        kind = pa.string() if name == "c" else None
        documents = [[10 * number + 1], [10 * number + 2]]
        column = pa.array(scores, kind)
        prefixes.append(make_with_table(tmp_path / name, documents, score=column, id=[1, 2]))
    made = tokpack.select(prefixes[:3], tmp_path / "good", where="score > 0.7")
    assert made.documents == 2
    with pytest.raises(UsageError, match=r"^where .*\bscore\b.*double in \S+a,"):
        tokpack.select(prefixes, tmp_path / "all", where="score > 0.7")
    with pytest.raises(UsageError, match=r"double in \S+a, int64 in \S+b, string in \S+d;"):
        tokpack.select(prefixes, tmp_path / "all", where="id > 0", repeat="2 if score = '1'")
    assert tokpack.select(prefixes, tmp_path / "all", where="id = 1").documents == 4

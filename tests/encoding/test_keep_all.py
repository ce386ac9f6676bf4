"""``keep="all"``: every small column, whatever the input is, and however the work is cut."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.encoding_tools import dataset

import tokpack
from tokpack.dataset import Manifest
from tokpack.encoding.first_records import SMALL_BYTES

if TYPE_CHECKING:
    from pathlib import Path

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

OWN = ["tokpack_source", "line", "bytes", "tokens", "text_xxh3", "tokens_xxh3"]
SMALL = ["id", "score", "source", "meta", "late"]
ROWS: list[dict[str, Any]] = [
    {
        "id": f"é{number}",
        "text": f"text {number} " * 60,
        "score": number / 7,
        "html": "<p>" * SMALL_BYTES,
        "source": "web",
        "meta": {"lang": "en", "n": number},
        **({"late": number} if number > 90 else {"late": None}),
    }
    for number in range(120)
]


def kept(prefix: Path) -> tuple[list[str], list[str]]:
    """The columns of a table behind those that every table has; what the manifest says of them."""
    names = parquet.read_table(f"{prefix}.docs.parquet").schema.names
    assert names[: len(OWN)] == OWN
    return names[len(OWN) :], Manifest.load(str(prefix)).options["keep"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("keep") / "in.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ROWS))
    return path


def test_all_is_what_it_stands_for(
    bpe: Path, lines: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    all_, named = tmp_path / "all", tmp_path / "named"
    manifest = tokpack.encode(lines, all_, tokenizer=bpe, keep="all", workers=2)
    assert kept(all_) == (SMALL, ["id", "score", "source", "meta", "late"])
    [said] = [one for one in caplog.messages if "html" in one]
    assert "html (770 bytes)" in said
    assert said.count("bytes)") == 1
    tokpack.encode(lines, named, tokenizer=bpe, keep=manifest.options["keep"], workers=1)
    assert dataset(all_) == dataset(named)
    tables = [parquet.read_table(f"{one}.docs.parquet") for one in (all_, named)]
    assert tables[0].equals(tables[1])
    assert tables[0]["meta"][3].as_py() == '{"lang":"en","n":3}'
    # The finished dataset serves the same request, and the one that it stands for.
    assert tokpack.encode(lines, all_, tokenizer=bpe, keep="all").chunks() is not None
    tokpack.encode(lines, all_, tokenizer=bpe, keep=manifest.options["keep"])
    # What is named is kept, however large it is.
    more = tmp_path / "more"
    tokpack.encode(lines, more, tokenizer=bpe, keep=["all", "page=html", "late=score"])
    assert kept(more)[0] == ["id", "source", "meta", "late_", "page", "late"]


def test_columns_of_a_table_that_was_kept_before(bpe: Path, tmp_path: Path) -> None:
    """Their names are those of tokpack's own columns."""
    (tmp_path / "in.jsonl").write_text('{"text": "a", "tokpack_source": "x", "Tokpack_A": 1}\n')
    out = tmp_path / "out"
    tokpack.encode(tmp_path / "in.jsonl", out, tokenizer=bpe, keep="all", workers=1)
    names = parquet.read_table(f"{out}.docs.parquet").schema.names
    assert names[-2:] == ["_tokpack_source", "_Tokpack_A"]


def test_a_column_without_any_value_is_told_once(
    bpe: Path, lines: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more: dict[str, Any] = {"keep": ["id", "none=no?", "late"], "keys": ("text", "source")}
    tokpack.encode(lines, tmp_path / "out", tokenizer=bpe, **more)
    told = [one for one in caplog.messages if "is empty" in one]
    assert told == ["no document has a value under no: the column none is empty"]


@pytest.mark.parametrize("kind", ["parquet", "csv", "iterable", "table", "batches", "pandas", "hf"])
def test_all_of_other_inputs(kind: str, bpe: Path, lines: Path, tmp_path: Path) -> None:
    table = arrow.Table.from_pylist(ROWS)
    given: Any = tmp_path / f"in.{kind}"
    small = SMALL
    if kind == "parquet":
        parquet.write_table(table, given)
    elif kind == "csv":
        from pyarrow import csv

        small = [name for name in SMALL if name != "meta"]
        csv.write_csv(table.drop_columns("meta"), given)
    elif kind == "iterable":
        given = iter(ROWS)
    elif kind == "table":
        given = table
    elif kind == "batches":
        given = arrow.RecordBatchReader.from_batches(table.schema, table.to_batches(40))
    elif kind == "pandas":
        given = pytest.importorskip("pandas").DataFrame(ROWS)
    else:
        given = pytest.importorskip("datasets").Dataset.from_list(ROWS)
    out = tmp_path / "out"
    tokpack.encode(given, out, tokenizer=bpe, keep="all", workers=2)
    # A column of nothing but null among the first records of a table is there, as its schema says.
    assert kept(out)[0] == small
    assert parquet.read_table(f"{out}.docs.parquet")["id"].to_pylist() == [r["id"] for r in ROWS]


def test_text_alone_has_no_columns(bpe: Path, tmp_path: Path) -> None:
    tokpack.encode(iter(["one", "two"]), tmp_path / "out", tokenizer=bpe, keep="all")
    assert parquet.read_table(f"{tmp_path / 'out'}.docs.parquet").schema.names == [
        "source",
        *OWN[1:],
    ]


def test_shards_keep_what_the_plan_says(bpe: Path, lines: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "sharded"
    tokpack.plan(lines, prefix, tokenizer=bpe, keep="all", shard_size=16 << 10)
    for shard in tokpack.status(prefix):
        tokpack.encode_shard(prefix, shard.number)
    tokpack.commit(prefix)
    names = tokpack.MMapIndexedDataset(str(prefix)).table().schema.names
    assert names == [*OWN, *SMALL]


def test_nested_columns_of_polars(bpe: Path, tmp_path: Path) -> None:
    """Their texts are views, which few of Arrow's kernels take inside of structs and lists."""
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"text": ["a", "", "b"], "meta": [{"lang": "en"}, {"lang": "de"}, None], "n": [["x"]] * 3}
    )
    for number, keep in enumerate(("all", ["meta", "n", "meta.lang"])):
        out = tmp_path / f"out{number}"
        tokpack.encode(frame, out, tokenizer=bpe, keep=keep, where="text <> 'c'")
        table = parquet.read_table(f"{out}.docs.parquet")
        assert table["meta"].to_pylist() == ['{"lang":"en"}', None]
        assert table["n"].to_pylist() == ['["x"]', '["x"]']

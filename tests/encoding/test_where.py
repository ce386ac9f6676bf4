"""The expressions of ``where``, and the columns that they name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.choosing import Record, encoded, records, settled, write
from support.encoding_tools import dataset

from tokpack.encoding.first_records import FIRST_RECORDS
from tokpack.errors import InputError, UsageError
from tokpack.sources import sql as where
from tokpack.sources.records import value_at
from tokpack.sources.rows import cast, types_of
from tokpack.sources.values import of_objects

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("duckdb")

BAD = [
    ("lang =", "^where 'lang =' .*: syntax error"),
    (" ", "^where .* empty:"),
    (
        "language = 'en'",
        "^where .*'language'.* id, text",
    ),
    ("meta.origin = 'a'", "'meta.origin'.*meta.source"),
    ("length(id) > 2", "No function matches.*id \\(int64\\)"),
    ("lang", r"^where 'lang' .*\bVARCHAR\b"),
    ("random() < 0.5", r"' has random\(\), "),
    ("now() > '2020-01-01'::timestamp", r'" has now\(\), '),
    ("ago(interval 1 day) > '2020-01-01'::timestamp", r'" has ago\(\), '),
    ("age(timestamp '2000-01-01') > interval 1 day", r'" has age\(\), '),
    ("current_localtimestamp() is null", r"' has current_localtimestamp\(\), "),
    ("year(today()) > 2000", r"' has today\(\), "),
    ("uuid()::text > 'a'", r'" has uuid\(\), '),
    ("lower(1) = 1", "the columns are none"),
    ("count(*) > 1", "^where 'count.* > 1': .*WHERE clause cannot contain aggregates"),
    ("row_number() over () = 1", "cannot contain window functions"),
    ("id in (select 1)", "subquery"),
    ("exists (from read_text('/etc/passwd'))", "subquery"),
    ("true) from read_csv('/etc/passwd') where (true", "^where .*more than one"),
    ("true; select 1", "^where 'true; select 1' .*: syntax error"),
    ("id = $1", "'id = .1': .*parameter"),
    ("columns('i.*') > 1", "star"),
    ("meta = 'a' and meta.source = 'b'", r" names meta and meta\.source: "),
    ("unnest([id]) = 1", "UNNEST not supported"),
    ("geomean(id) > 1", "cannot contain aggregates"),
    ("true); select (true", "^where .*more than one"),
    ("nosuchfunction(id) > 1", "nosuchfunction does not exist"),
]


@pytest.mark.parametrize(("expression", "says"), BAD, ids=[one for one, _ in BAD])
def test_wrong_expressions_end_before_any_work(expression: str, says: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", records(50))
    with pytest.raises(UsageError, match=says):
        settled(source, where=expression)


def test_a_value_of_another_type_is_a_bad_record(tmp_path: Path, bpe: Path) -> None:
    rows = [{"text": f"text {n}", "score": n} for n in range(FIRST_RECORDS)]
    rows += [
        {"text": "late", "score": 0.5},
        {"text": "later", "score": "high"},
        {"text": "null", "score": None},
    ]
    source = write(tmp_path / "in.jsonl", rows)
    made = encoded(source, tmp_path / "out", bpe, where="score >= 0", on_error="skip")
    assert (made.rejected, made.left_out) == (2, 1)
    # A cast says which type all of them have.
    cast = encoded(source, tmp_path / "cast", bpe, where="score::double >= 0", on_error="skip")
    assert (cast.rejected, cast.left_out, cast.documents) == (1, 1, made.documents + 1)


def test_numbers_beyond_64_bits_are_not_rounded(tmp_path: Path, bpe: Path) -> None:
    """As doubles, neighbours would be equal, and all of them even."""
    rows = [{"text": f"text {n}", "id": (1 << 63) - 8 + n} for n in range(16)]
    source = write(tmp_path / "in.jsonl", rows)
    for kind in ("hugeint", "ubigint"):
        odd = encoded(source, tmp_path / kind, bpe, where=f"id::{kind} % 2 = 1")
        assert (odd.documents, odd.left_out) == (8, 8)
    one = encoded(source, tmp_path / "one", bpe, where=f"id = '{(1 << 63) + 5}'")
    assert one.documents == 1
    with pytest.raises(UsageError, match=r"%.*id \(string\)"):
        settled(source, where="id % 2 = 1")


# -- columns ------------------------------------------------------------------------------------

NAMES = [
    ('"a.b" = 1', [0]),
    ("a.c = 2", [1, 2]),
    ("s.x.y < 2", [0, 1]),
    ("\"a.b\" < 3 and a.c = 2 and s.z = '1'", [1]),
    ("s.Key = 2", [2]),
]


@pytest.mark.parametrize("mapped", [None, lambda batch: batch])
@pytest.mark.parametrize(("expression", "numbers"), NAMES)
def test_a_name_is_that_of_one_column(
    expression: str, numbers: list[int], mapped: Any, tmp_path: Path, bpe: Path
) -> None:
    rows: list[Record] = [
        {
            "text": f"text {n}",
            "a.b": n + 1,
            "a": {"c": 2 if n else 1},
            "s": {"x": {"y": n}, "z": str(n), "KEY": -1, "Key": n},
        }
        for n in range(3)
    ]
    encoded(iter([rows[n] for n in numbers]), tmp_path / "plain", bpe)
    for name, inputs in (("mappings", iter(rows)), ("table", pa.Table.from_pylist(rows))):
        out = tmp_path / name
        made = encoded(inputs, out, bpe, where=expression, map=mapped)
        assert made.documents == len(numbers)
        assert dataset(out) == dataset(tmp_path / "plain")


def test_names_that_differ_in_case_are_not_one_column() -> None:
    for expression, names in (
        ("Lang = 'x' and lang = 'y'", "Lang and lang"),
        ("meta.Lang = meta.lang", r"meta\.Lang and meta\.lang"),
        ("Meta.a = meta.b", r"Meta and meta\.b"),
    ):
        with pytest.raises(UsageError, match=f" {names}: "):
            where.columns_of(expression)


@pytest.mark.parametrize("mapped", [None, lambda batch: batch])
def test_a_table_without_the_column_text_has_none(mapped: Any, tmp_path: Path, bpe: Path) -> None:
    table = pa.table({"body": ["one two", "x"], "more": [1, 2]})
    (tmp_path / "in.csv").write_text("body,n,n\none two,1,1\n")
    csv_file, request = tmp_path / "in.csv", {"keys": "body", "map": mapped}
    for inputs in (table, table.to_reader()):
        with pytest.raises(InputError, match=r"^table: .*'text'.* body, more$"):
            encoded(inputs, tmp_path / "out", bpe, where="length(text) > 1", **request)
    with pytest.raises(InputError, match=r"in\.csv"):
        encoded(csv_file, tmp_path / "out", bpe, where="length(text) > 1", **request)
    with pytest.raises(InputError, match=r"in\.csv: 2 .*'n'"):
        encoded(csv_file, tmp_path / "out", bpe, where="n = '1'", **request)


TYPES = [
    ("s.a < 10 and s.b.c < 5", lambda n: n % 20 < 5),
    ("u > 9", lambda n: n > 9),
    ("stamp > '1970-01-01'", lambda n: n > 0),
    ("mapping['k'] < 5", lambda n: n < 5),
    ("list_contains(tags, 3)", lambda n: n % 4 == 3),
    ("year(day) = 2021", lambda n: n == 29_999),
    ("hour(day::timestamptz + interval 1 hour) = 1", lambda n: n == 29_999),  # of UTC
]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parquet file with columns of types that JSON has not."""
    numbers = range(30_000)
    mappings = [[("k", n)] for n in numbers]
    days = [None] * 29_999 + [18_700]
    table = pa.table(
        {
            "text": ["a b"] * len(numbers),
            "s": [{"a": n % 20, "b": {"c": n % 20}} for n in numbers],
            "u": pa.array([*numbers[:-1], (1 << 63) + 5], pa.uint64()),
            "stamp": pa.array(numbers, pa.timestamp("ns")),
            "mapping": pa.array(mappings, pa.map_(pa.string(), pa.int64())),
            "tags": [[n % 4] if n % 2 else [] for n in numbers],
            "day": pa.array(days, pa.int32()).cast(pa.date32()),
        }
    )
    path = tmp_path_factory.mktemp("typed") / "in.parquet"
    parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("mapped", [None, lambda batch: batch])
@pytest.mark.parametrize(("expression", "keeps"), TYPES, ids=[one for one, _ in TYPES])
def test_columns_of_tables_have_their_own_types(
    request: pytest.FixtureRequest,
    expression: str,
    keeps: Callable[[int], bool],
    mapped: Any,
    tmp_path: Path,
) -> None:
    typed, bpe = request.getfixturevalue("typed"), request.getfixturevalue("bpe")
    made = encoded(typed, tmp_path / "out", bpe, where=expression, map=mapped)
    assert made.documents == sum(map(keeps, range(made.records)))
    assert made.adds_up


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), values), min_size=1, max_size=6))
def test_each_value_is_in_its_column_or_its_record_is_bad(rows: list[Record]) -> None:
    types = types_of(rows[:3], None)
    for name, kind in types.items():
        expected = [value_at(row, name) for row in rows]
        array, bad = cast(of_objects(expected), kind, name)
        for index, (value, got) in enumerate(zip(expected, array.to_pylist(), strict=True)):
            if index in bad:
                assert index >= 3 or "surrogate" in bad[index]
                assert got is None
            elif value is None:
                assert got is None
            elif kind == "string" and not isinstance(value, str):
                assert isinstance(got, str)
            elif isinstance(value, float) and math.isnan(value):
                assert math.isnan(got)
            elif kind == "double":
                assert got == pytest.approx(value) or math.isinf(got)
            else:
                assert got == value
                assert type(got) is type(value)


def test_the_columns_of_an_expression() -> None:
    assert where.columns_of(
        "a.b > 1 and upper(c) = 'X' and list_filter(d, lambda x: x > a.b) is null"
    ) == (*("a.b", "c", "d"),)
    assert where.parse("score::double > 1 and id::varchar = 'a'").casts == {
        ("score",): "double",
        ("id",): "string",
    }


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "nested"])
@pytest.mark.parametrize("workers", [1, 3])
def test_nan_is_counted_where_it_is_compared(
    kind: str, workers: int, tmp_path: Path, bpe: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[Record] = [
        {"text": f"text {i}", "score": math.nan if i % 7 == 0 else i / 1000} for i in range(900)
    ]
    rows[1]["score"] = None
    name = "score"
    if kind == "nested":
        rows, name = (
            [{"text": one["text"], "meta": {"score": one["score"]}} for one in rows],
            "meta.score",
        )
    path = tmp_path / "a.x"
    if kind == "jsonl":
        write(path, rows)
    else:
        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)
    nans = len(range(0, 900, 7))
    manifest = encoded(path, tmp_path / "o", bpe, where=f"{name} > 0.8", workers=workers)
    above = sum(1 for i in range(900) if i % 7 and i > 800)
    assert (manifest.documents, manifest.nans) == (nans + above, nans)
    assert f"{nans} records with NaN" in caplog.text
    caplog.clear()
    where = f"{name} > 0.8 and not isnan({name})"
    manifest = encoded(path, tmp_path / "p", bpe, where=where, workers=workers)
    assert (manifest.documents, manifest.nans) == (above, 0)
    manifest = encoded(path, tmp_path / "q", bpe, where="length(text) > 7", workers=workers)
    assert manifest.nans == 0
    assert "NaN" not in caplog.text

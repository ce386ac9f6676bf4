"""Selections: the documents that a plain filter takes, counts that add up, bad requests."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cli_tools import tokpack as command
from support.table_tools import ids_of, make_with_table, table_is_gone, token_digest

import tokpack
from tokpack import _core
from tokpack.dataset import Origins
from tokpack.errors import FormatError, InputError, OutputError, UsageError

MASK = (1 << 64) - 1
DRAW = np.random.default_rng(5)
DOCUMENTS = [DRAW.integers(0, 60_000, size).tolist() for size in DRAW.integers(1, 40, 400)]
SCORES = DRAW.random(400).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``web`` with 300 documents, ``wiki`` with 100, which have scores, languages and ids."""
    folder = tmp_path_factory.mktemp("datasets")
    for name, numbers in (("web", range(300)), ("wiki", range(300, 400))):
        make_with_table(
            folder / name,
            [DOCUMENTS[number] for number in numbers],
            id=[f"d{number}" for number in numbers],
            score=[SCORES[number] for number in numbers],
            lang=["de" if number % 2 else None for number in numbers],
        )
    even = range(0, 400, 2)
    table = pa.table({"id": [f"d{number}" for number in even], "quality": list(even)})
    pq.write_table(table, folder / "scores.parquet")
    return folder


def number_of(tokens: list[int], seed: int) -> int:
    """The number of a document for shares: a twin of ``shares.draw``."""
    value = int.from_bytes(token_digest(tokens)[:8], "big") ^ _core.mix(seed)
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def hashes(*prefixes: Path) -> Counter[bytes]:
    return Counter(token_digest(one) for prefix in prefixes for one in ids_of(prefix))


def test_where_and_repeat(folder: Path, tmp_path: Path) -> None:
    made = tokpack.select(
        [folder / "web", folder / "wiki"],
        folder / "good",
        where="score > 0.5 and lang = 'de'",
        repeat="2 if score > 0.9",
        overwrite=True,
    )
    passing = [n for n in range(400) if SCORES[n] > 0.5 and n % 2]
    expected = [DOCUMENTS[n] for n in passing for _ in range(2 if SCORES[n] > 0.9 else 1)]
    assert ids_of(folder / "good") == expected
    assert made.documents == len(expected)
    assert made.tokens == sum(map(len, expected))
    chosen = made.options["select"]
    assert chosen["dropped"] == {"where": 400 - len(passing), "repeat": 0}
    assert (chosen["documents"], chosen["kept"]) == (400, len(passing))
    assert chosen["with_repeats"] == len(expected)
    tokpack.merge(folder / "good", tmp_path / "copy")
    assert ids_of(tmp_path / "copy") == expected
    assert tokpack.verify(folder / "good").documents == len(expected)


@pytest.mark.parametrize("kind", ["pyarrow", "pandas", "polars", "batches"])
def test_a_table_in_memory_is_joined_like_a_file(folder: Path, kind: str) -> None:
    table = pq.read_table(folder / "scores.parquet")
    if kind == "batches":
        given: Any = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(20))
    else:
        given = (
            table if kind == "pyarrow" else pytest.importorskip(kind).DataFrame(table.to_pydict())
        )
    options: dict[str, Any] = {"on": "id", "where": "quality > 100", "overwrite": True}
    file = tokpack.select(folder / "web", folder / "a", join=folder / "scores.parquet", **options)
    made = tokpack.select(folder / "web", folder / "b", join=given, **options)
    assert ids_of(folder / "b") == ids_of(folder / "a")
    assert made.options["select"]["unmatched"] == file.options["select"]["unmatched"]
    with pytest.raises(UsageError, match=r"where x > 1: .*in memory .*id \(VARCHAR\), quality"):
        tokpack.select(folder / "web", folder / "b", join=table, **{**options, "where": "x > 1"})
    twice = pa.concat_tables([table, table.slice(0, 1)])
    with pytest.raises(InputError, match=r"^join .*in memory on id: .*'d0'"):
        tokpack.select(folder / "web", folder / "b", join=twice, **options)


def test_numbers_as_the_command_line_has_them(folder: Path) -> None:
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"random": "25%"}, {"random": 0.25}),
        ({"random": "0.25"}, {"random": 0.25}),
        ({"tokens": "1k"}, {"tokens": 1000}),
        ({"tokens": 1e3}, {"tokens": 1000}),
        ({"first": "1_0"}, {"first": 10}),
        ({"repeat": 2}, {"repeat": "2"}),
    ]
    for given_, plain in pairs:
        tokpack.select(folder / "web", folder / "a", **given_, overwrite=True)
        tokpack.select(folder / "web", folder / "b", **plain, overwrite=True)
        assert ids_of(folder / "a") == ids_of(folder / "b")
    for wrong, says in (
        ({"random": "x"}, "^random .*'x'; "),
        ({"tokens": "many"}, "^tokens .*'many'; "),
        ({"first": [1]}, r"^first .*\[1\]; "),
        ({"where": 5}, r"^where .*\b5; .*\bSQL\b"),
        ({"repeat": 1.5}, r"^repeat .*\b1\.5; "),
        ({"join": 5, "on": "id", "where": "x > 1"}, r"^join .*\b5: "),
    ):
        with pytest.raises(UsageError, match=says):
            tokpack.select(folder / "web", folder / "c", **wrong)


def test_a_view_is_selected_from_like_a_dataset(folder: Path) -> None:
    options: dict[str, Any] = {"overwrite": True}
    tokpack.select(folder / "web", folder / "a", repeat="3 if score > 0.8", **options)
    made = tokpack.select([folder / "a", folder / "wiki"], folder / "b", where="tokens > 20",
                          **options)  # fmt: skip
    listed = [DOCUMENTS[n] for n in range(300) for _ in range(3 if SCORES[n] > 0.8 else 1)]
    assert ids_of(folder / "b") == [one for one in listed + DOCUMENTS[300:] if len(one) > 20]
    assert made.options["select"]["documents"] == len(listed) + 100
    tokpack.select([folder / "a", folder / "web"], folder / "c", tokens=3000, **options)
    assert 3000 - 4 * 40 < sum(map(len, ids_of(folder / "c"))) <= 3000
    many = [folder / "web", folder / "wiki"]
    tokpack.merge(many, folder / "both", virtual=True, overwrite=True)
    tokpack.select(folder / "both", folder / "d", where="score > 0.5", **options)
    assert ids_of(folder / "d") == [DOCUMENTS[n] for n in range(400) if SCORES[n] > 0.5]


def test_a_joined_table_has_more_columns(folder: Path, tmp_path: Path) -> None:
    made = tokpack.select(
        folder / "web", folder / "good", join=folder / "scores.parquet", on="id",
        where="quality > 100 and score < 0.9", overwrite=True,
    )  # fmt: skip
    expected = [DOCUMENTS[n] for n in range(102, 300, 2) if SCORES[n] < 0.9]
    assert ids_of(folder / "good") == expected
    assert made.options["select"]["unmatched"] == 150
    # Those without a row have NULL there; a table may be in several files of text.
    for number in range(2):
        rows = "".join(f'{{"doc": "d{n}", "bad": true}}\n' for n in range(number, 300, 4))
        (tmp_path / f"part{number}.jsonl").write_text(rows)
    parts = [tmp_path / "part0.jsonl", tmp_path / "part1.jsonl"]
    tokpack.select(folder / "web", folder / "good", join=parts, on="id=doc", where="bad is null",
                   overwrite=True)  # fmt: skip
    assert ids_of(folder / "good") == [DOCUMENTS[n] for n in range(300) if n % 4 > 1]
    (tmp_path / "lines.csv").write_text("source,line,w\nin.jsonl,3,2\nin.jsonl,5,0\n")
    made = tokpack.select(folder / "web", folder / "good", join=tmp_path / "lines.csv",
                          on="source,line", repeat="coalesce(w, 1)", overwrite=True)  # fmt: skip
    assert ids_of(folder / "good") == [DOCUMENTS[n] for n in [0, 1, 2, 2, 3, *range(5, 300)]]
    assert made.options["select"]["dropped"] == {"repeat": 1}
    assert made.options["select"]["kept"] == 299


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_shares_are_of_hashes_and_nothing_is_lost(data: st.DataObject) -> None:
    tokens = st.lists(st.integers(0, 3), max_size=3)  # with many duplicates
    documents = data.draw(st.lists(tokens, min_size=2, max_size=30))
    seed = data.draw(st.integers(0, 2**63))
    share = data.draw(st.floats(0.05, 0.95))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_with_table(folder / "data", documents, n=list(range(len(documents))))
        passing = [one for n, one in enumerate(documents) if n % 5]
        inside = [one for one in passing if number_of(one, seed) < int(share * 2**64)]
        options: dict[str, Any] = {"where": "n % 5 > 0", "random": share, "seed": seed}
        if not 0 < len(inside) < len(passing):
            empty = "out" if inside else "in"
            with pytest.raises(UsageError, match=rf"/{empty} .* of {len(documents)},"):
                tokpack.select(folder / "data", folder / "in", rest=folder / "out", **options)
            assert not list(folder.glob("in*"))
            return
        made = tokpack.select(folder / "data", folder / "in", rest=folder / "out", **options)
        assert ids_of(folder / "in") == inside
        assert Counter(map(token_digest, passing)) == hashes(folder / "in", folder / "out")
        assert not hashes(folder / "in").keys() & hashes(folder / "out").keys()
        counts = made.options["select"]
        assert (
            counts["documents"]
            == len(documents)
            == counts["kept"] + sum(counts["dropped"].values())
        )
        assert counts["dropped"]["random"] == len(passing) - len(inside)
        table_is_gone(folder / "data")  # the hashes of tokens are the same
        del options["where"]
        tokpack.select(folder / "data", folder / "again", **options)
        expected = [one for one in documents if number_of(one, seed) < int(share * 2**64)]
        assert ids_of(folder / "again") == expected


def test_a_larger_share_contains_a_smaller_one_and_more_documents_change_none(
    folder: Path,
) -> None:
    before: Counter[bytes] = Counter()
    for name, options in (
        *((f"r{share}", {"random": share}) for share in (0.05, 0.3, 0.31, 1.0)),
        *((f"t{tokens}", {"tokens": tokens}) for tokens in (500, 600, 4000, 10**9)),
    ):
        before = Counter() if name in ("r0.05", "t500") else before
        made = tokpack.select(folder / "web", folder / name, overwrite=True, **options)
        now = hashes(folder / name)
        assert not before - now
        before = now
        if "tokens" in options:
            missing = min(options["tokens"], sum(map(len, DOCUMENTS[:300]))) - made.tokens
            assert 0 <= missing < 40
        else:
            assert abs(made.documents - 300 * options["random"]) < 50
    assert before == hashes(folder / "web")
    both = [folder / "web", folder / "wiki"]
    tokpack.select(both, folder / "more", random=0.3, overwrite=True)
    assert not hashes(folder / "r0.3") - hashes(folder / "more")
    tokpack.select(both, folder / "other", random=0.3, seed=1, overwrite=True)
    assert hashes(folder / "other") != hashes(folder / "more")


def test_the_first_documents(folder: Path) -> None:
    made = tokpack.select(folder / "web", folder / "f", first=10, where="lang = 'de'",
                          rest=folder / "g", overwrite=True)  # fmt: skip
    german = DOCUMENTS[1:300:2]
    assert (ids_of(folder / "f"), ids_of(folder / "g")) == (german[:10], german[10:])
    assert made.options["select"]["dropped"] == {"where": 150, "first": 140}


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"where": "scor > 1"}, UsageError, r"^where scor > 1: .* scor; .*score \(DOUBLE\), lang"),
    ({"where": "score"}, UsageError, r"^where score: .*\bDOUBLE\b"),
    ({"where": "score >"}, UsageError, r"^where 'score >' .*\bsyntax\b"),
    ({"where": "random() > 0.5"}, UsageError, r"^where 'random\(\) > 0\.5' .* random\(\), "),
    ({"where": "score > (select 1)"}, UsageError, r"^where 'score > .*\bsubquery\b"),
    ({"where": ""}, UsageError, r"^where .*\bempty\b"),
    ({"where": "sum(score) > 1"}, UsageError, r"^where sum.*\baggregates\b"),
    ({"where": "id::int > 3"}, UsageError, r"^where id::int > 3: .*'d0'"),
    ({"where": "score > 2"}, UsageError, r"^bad .*\b300, 300 .*\bwhere$"),
    ({"repeat": "score"}, UsageError, r"^repeat score: .*\bDOUBLE, .*\binteger\b"),
    ({"repeat": "case when score > 0.5 then 2 end"}, UsageError, r"\bNULL, for document 1 "),
    ({"repeat": "-1"}, UsageError, r"^repeat -1: .* -1 for document 0\b"),
    ({"repeat": "10000000"}, UsageError, r"\b10000000 for document 0\b"),
    ({"repeat": "18446744073709551618::hugeint"}, UsageError, r"\b18446744073709551618 for"),
    ({"repeat": "18446744073709551615::ubigint"}, UsageError, r"\b18446744073709551615 for"),
    ({"random": 0.5, "seed": 10**23}, UsageError, r"^seed=10+: "),
    ({"repeat": f"{2**127 - 1}::hugeint"}, UsageError, rf"\b{2**127 - 1} for document 0\b"),
    ({"repeat": "(random() * 2)::int"}, UsageError, r"^repeat .*int' .* random\(\), "),
    ({"repeat": "sum(tokens)::int"}, UsageError, r"^repeat sum.*\baggregates\b"),
    ({"repeat": "(select 2)"}, UsageError, r"^repeat '\(select 2\)' .*\bsubquery\b"),
    ({"repeat": " "}, UsageError, r"^repeat .*\bempty\b"),
    ({"repeat": "2 if score >"}, UsageError, r"^repeat '2 if score >' .*\bsyntax\b"),
    ({"random": 0.5, "seed": -1}, UsageError, r"^seed=-1: "),
    ({"random": 0.0}, UsageError, r"^random=0\.0: "),
    ({"random": 2}, UsageError, r"^random=2: "),
    ({"random": float("nan")}, UsageError, r"^random=nan: "),
    ({"tokens": 0}, UsageError, r"^tokens=0: "),
    ({"first": 1, "tokens": 1}, UsageError, r"^tokens and first: "),
    ({"rest": "rest"}, UsageError, r"^rest .*\brandom, tokens or first\b"),
    ({"join": "scores.parquet", "where": "true"}, UsageError, r"^join needs on:"),
    ({"on": "id", "where": "true"}, UsageError, r"^on needs join:"),
    ({"join": "scores.parquet", "on": "id"}, UsageError, r"^join .*\bwhere or repeat$"),
    ({"join": "none.parquet", "on": "id", "where": "true"}, InputError, r"^none\.parquet: "),
    ({"join": "notes.md", "on": "id", "where": "true"}, UsageError, r"^join notes\.md: "),
    ({"join": "scores.parquet", "on": "ids", "where": "true"}, UsageError, r"^on ids: .*\bid \("),
    ({"join": "scores.parquet", "on": "lang=id", "where": "true"}, InputError,
     r"^join scores\.parquet on lang: .*\b300 documents: .*'d\d+'"),
    ({"join": "twice.csv", "on": "id", "where": "true"}, InputError,
     r"^join twice\.csv on id: 2 .*'d2' \(3 rows\), 'd1' \(2 rows\)"),
    ({"join": "scores.parquet", "on": "score=quality", "where": "true"}, UsageError,
     r"^on score: .*\bDOUBLE .*\bquality .*\bBIGINT in scores\.parquet:"),
    ({"join": "broken.csv", "on": "id", "where": "q > 1"}, UsageError,
     r"^join broken\.csv: .*oops.*'BIGINT'$"),
    ({"join": "scores.parquet", "on": "id", "where": "qual > 1"}, UsageError,
     r"scores\.parquet has id \(VARCHAR\), quality \(BIGINT\)"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_bad_requests(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: Any, message: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "twice.csv").write_text("id,q\nd1,1\nd1,1\nd2,2\nd2,1\nd2,3\nd3,1\n")
    (folder / "notes.md").write_text("none")
    lines = "".join(f"e{n},{n}\n" for n in range(30_000))  # more than duckdb guesses types by
    (folder / "broken.csv").write_text(f"id,q\n{lines}e,oops\n")
    with pytest.raises(error, match=message):
        tokpack.select("web", "bad", **options)
    assert not list(folder.glob("bad*"))


def test_a_table_of_another_dataset_is_refused(folder: Path, tmp_path: Path) -> None:
    web, other = make_with_table(tmp_path / "a", [[1], [2]]), tmp_path / "b"
    make_with_table(other, [[1], [3]])
    (tmp_path / "a.docs.parquet").write_bytes((tmp_path / "b.docs.parquet").read_bytes())
    with pytest.raises(FormatError, match=r"a\.docs\.parquet"):
        tokpack.select(web, tmp_path / "c", where="tokens > 0")
    table_is_gone(web)
    with pytest.raises(InputError, match="/a:"):
        tokpack.select(web, tmp_path / "c", where="tokens > 0 and line > 0")
    with pytest.raises(OutputError):
        tokpack.select(folder / "web", other, where="nonsense")  # said before any work


def test_columns_that_have_the_names_of_the_tables_own(tmp_path: Path) -> None:
    """What was kept has the name, and the table's own column another one; so have others then."""
    vocab = tmp_path / "vocab.json"
    vocab.write_text(json.dumps({"<unk>": 0, "<|endoftext|>": 1, "a": 2}))
    lines = [{"text": "a " * n, "source": f"s{n % 2}", "tokens": f"t{n}"} for n in range(1, 5)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept, plain = str(tmp_path / "kept"), str(tmp_path / "plain")
    for output, more in ((kept, {"keep": ["source", "tokens"]}), (plain, {"trace": True})):
        tokpack.encode(
            str(tmp_path / "in.jsonl"),
            output,
            tokenizer_type="Whitespace",
            vocab_file=vocab,
            **more,
        )
    name = str(tmp_path / "in.jsonl")
    view = str(tmp_path / "view")

    def count(where: str, *prefixes: str) -> int:
        return tokpack.select(prefixes, view, where=where, overwrite=True).documents

    assert count("source = 's1' and tokens in ('t1', 't2')", kept) == 1
    assert count("tokpack_tokens > 3 and tokpack_source = '" + name + "'", kept) == 2
    assert count(f"source = '{name}' and tokens > 3", plain) == 2
    assert count("source like 's%'", kept, plain) == 4
    assert count(f"tokpack_source = '{name}'", kept, plain) == 8
    merged = str(tmp_path / "merged")
    tokpack.merge([plain, kept], merged)
    table = tokpack.MMapIndexedDataset(merged).table(["source", "tokpack_source", "tokens", "line"])
    assert table["source"].to_pylist() == [None] * 4 + ["s1", "s0", "s1", "s0"]
    assert table["tokpack_source"].to_pylist() == [name] * 8
    for prefix, number in ((kept, 2), (merged, 6)):
        origin = Origins(prefix, kept=True)[number]
        assert (str(origin), dict(origin.kept)) == (f"{name}:3", {"source": "s1", "tokens": "t3"})
    [found] = Origins(kept, kept=True).find("in.jsonl", 3)
    assert (found.document, found.kept["tokens"]) == (2, "t3")


def test_lengths_and_numbers_need_no_table(tmp_path: Path) -> None:
    documents = [[1] * n for n in range(1, 9)]
    for name in ("a", "b"):
        make_with_table(tmp_path / name, documents)
    table_is_gone(tmp_path / "a")
    view = tmp_path / "view"

    def chosen(where: str, *names: str) -> list[int]:
        tokpack.select([tmp_path / name for name in names], view, where=where, overwrite=True)
        return [len(one) for one in ids_of(view)]

    assert chosen("tokens > 5 and document <> 6", "a") == [6, 8]
    assert chosen("document < 2", "a", "b") == [1, 2, 1, 2]
    tokpack.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both", virtual=True)
    assert chosen("document in (7, 8)", "both") == [8, 1]
    with pytest.raises(InputError, match="/a:"):
        chosen("line > 5", "a", "b")


def test_equal_documents_are_on_one_side_of_a_number_of_tokens(tmp_path: Path) -> None:
    documents = [[1, 2, 3]] * 40 + [[n, n, n] for n in range(4, 44)]
    make_with_table(tmp_path / "data", documents)
    sides = []
    for tokens in range(9, 240, 21):
        names = tmp_path / f"in{tokens}", tmp_path / f"out{tokens}"
        made = tokpack.select(tmp_path / "data", names[0], tokens=tokens, rest=names[1])
        inside, outside = map(hashes, names)
        assert not inside.keys() & outside.keys()
        assert inside + outside == hashes(tmp_path / "data")
        sides.append(inside[token_digest([1, 2, 3])] > 0)
        assert tokens - 3 < made.tokens <= tokens or not sides[-1]
        assert made.tokens <= tokens
    assert sorted(sides) == sides
    assert True in sides
    assert False in sides


def test_the_command(folder: Path) -> None:
    run = command(
        "select", "web", "--where", "score > 0.5", "--random", "0.5", "--seed", "1", "-o", "train",
        "--rest", "valid", "--json", "--overwrite", cwd=folder,
    )  # fmt: skip
    made = json.loads(run.stdout)["datasets"]
    passing = sum(score > 0.5 for score in SCORES[:300])
    assert made[0]["documents"] + made[1]["documents"] == passing
    assert f"of 300 documents: {made[0]['documents']:,} kept; " in run.stderr
    assert f"{300 - passing} dropped by --where; " in run.stderr
    assert f"train: {made[0]['documents']:,} documents, {made[0]['tokens']:,} tokens" in run.stderr


def test_nan_is_counted_where_it_is_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It passes score > 0.9: DuckDB takes it for larger than any number."""
    scores = [0.95, 0.1, float("nan"), None, float("nan")]
    tokens = [[number] for number in range(5)]
    names = [f"d{number}" for number in range(5)]
    make_with_table(tmp_path / "a", tokens, id=names, score=scores)
    table = pa.table({"id": names, "quality": [float("nan")] * 3 + [1.0, 2.0]})
    requests: list[tuple[dict[str, Any], int, str]] = [
        ({"where": "score > 0.9"}, 3, "2 documents with NaN"),
        ({"repeat": "2 if score > 0.9"}, 8, "2 documents with NaN"),
        ({"where": "quality > 0.9", "join": table, "on": "id"}, 5, "3 documents with NaN"),
        ({"where": "score > 0.9 and not isnan(score)"}, 1, ""),
        ({"where": "score > 0.9 and isfinite(score)"}, 1, ""),
        ({"where": "id <> 'd0'"}, 4, ""),
    ]
    for number, (request, kept, said) in enumerate(requests):
        caplog.clear()
        manifest = tokpack.select(tmp_path / "a", tmp_path / f"o{number}", **request)
        assert manifest.documents == kept
        assert (said in caplog.text) if said else not caplog.records

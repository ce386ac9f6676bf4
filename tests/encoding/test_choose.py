"""``where`` and ``map``: chosen as plain Python chooses, whatever the inputs and the workers."""

from __future__ import annotations

import csv
import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import map_functions
from support.choosing import Record, encoded, records, settled, write
from support.encoding_tools import dataset
from support.report_tools import run
from support.stopped_runs import STOP_AT_END, stop_at_part, stop_at_rename

import tokpack
from tokpack.encoding import choose, plan
from tokpack.encoding.options import EncodeOptions
from tokpack.encoding.status import run_status
from tokpack.errors import InputError, OutputError, RecordError, UsageError
from tokpack.sources import make_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.stopped_runs import Place

pa = pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

FUNCTIONS = str(Path(map_functions.__file__))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MIN_PART_BYTES", 32 << 10)
    monkeypatch.setattr(
        "tokpack.encoding.plan.make_parts",
        functools.partial(make_parts, smallest_bytes=32 << 10),
    )


WHERE = [
    (
        "length(text) > 200 and lang = 'en'",
        lambda r: len(r["text"]) > 200 and r.get("lang") == "en",
    ),
    ("score > 0.4", lambda r: r["score"] > 0.4),
    ("lang is null", lambda r: r.get("lang") is None),
    ("not lang = 'en'", lambda r: r.get("lang") not in (None, "en")),
    (
        "meta.source in ('a', 'b') and id % 2 = 0",
        lambda r: r["meta"]["source"] in "ab" and r["id"] % 2 == 0,
    ),
    ("meta->>'source' = 'c'", lambda r: r["meta"]["source"] == "c"),
    ("list_contains(list_transform([1, 2], lambda x: x + id), 9)", lambda r: r["id"] in (7, 8)),
]


@pytest.mark.parametrize(("expression", "keeps"), WHERE, ids=[one for one, _ in WHERE])
def test_where_keeps_what_python_keeps(
    expression: str, keeps: Callable[[Record], bool], tmp_path: Path, bpe: Path
) -> None:
    rows = records()
    source = write(tmp_path / "in.jsonl", rows)
    workers = 2 if expression == WHERE[0][0] else 1
    made = encoded(source, tmp_path / "out", bpe, where=expression, workers=workers)
    chosen = [row for row in rows if keeps(row)]
    plain = encoded(write(tmp_path / "chosen.jsonl", chosen), tmp_path / "plain", bpe)
    assert dataset(tmp_path / "out") == dataset(tmp_path / "plain")
    assert made.records == len(rows)
    assert made.left_out == len(rows) - len(chosen)
    assert (
        made.documents + made.empty == plain.documents + plain.empty == made.records - made.left_out
    )
    assert made.adds_up


def twice(rows: list[Record]) -> list[Record]:
    return [row for row in rows for _ in range(row["id"] % 3)]


MAPS = {
    "same": lambda rows: rows,
    "shout": lambda rows: [{**row, "text": row["text"].upper()} for row in rows],
    "even": lambda rows: [row for row in rows if row["id"] % 2 == 0],
    "copies": twice,
}


@pytest.mark.parametrize("name", MAPS)
def test_map_gives_what_python_gives(name: str, tmp_path: Path, bpe: Path) -> None:
    rows = records()
    source = write(tmp_path / "in.jsonl", rows)
    expected = MAPS[name]([row for row in rows if row["id"] > 99])
    encoded(write(tmp_path / "expected.jsonl", expected), tmp_path / "plain", bpe)
    ways: list[tuple[Any, int]] = [(getattr(map_functions, name), 2)]
    if name == "copies":
        ways += [(f"{FUNCTIONS}:{name}", 1), (f"{FUNCTIONS}:{name}", 3)]
    for number, (given_as, workers) in enumerate(ways):
        out = tmp_path / f"out{number}"
        made = encoded(source, out, bpe, where="id > 99", map=given_as, workers=workers)
        assert dataset(out) == dataset(tmp_path / "plain")
        assert made.left_out == 100
        assert made.adds_up
        assert made.records - made.left_out - made.mapped_out + made.mapped_in == len(expected)
        assert sum(one["records"] for one in made.inputs) == made.records


def sources(rows: list[Record], folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    table = pa.table(
        {
            "id": [row["id"] for row in rows],
            "text": [row["text"] for row in rows],
            "lang": [row.get("lang") for row in rows],
            "meta": [row["meta"]["source"] for row in rows],
        }
    )
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(table, folder / "in.parquet", row_group_size=100)
    write(folder / "in.jsonl", rows)
    (folder / "array.json").write_text(json.dumps(rows))
    with open(folder / "in.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "lang"])
        writer.writerows([str(row["id"]), row["text"], row.get("lang") or ""] for row in rows)
    yield "jsonl", lambda: folder / "in.jsonl"
    yield "array", lambda: folder / "array.json"
    yield "csv", lambda: folder / "in.csv"
    yield "parquet", lambda: folder / "in.parquet"
    yield "table", lambda: table
    yield "reader", table.to_reader
    yield "mappings", lambda: iter(rows)


@pytest.mark.parametrize("mapped", [None, "copies"])
def test_all_kinds_of_inputs_give_the_same(mapped: str | None, tmp_path: Path, bpe: Path) -> None:
    function = getattr(map_functions, mapped) if mapped else None
    made: dict[str, Any] = {}
    where = "lang = 'de' and length(text) > 50"
    for name, give in sources(records(300), tmp_path):
        out, workers = tmp_path / f"out-{name}", 2 if name in ("parquet", "mappings") else 1
        encoded(give(), out, bpe, where=where, map=function, workers=workers)
        made[name] = dataset(out)
    assert all(one == made["jsonl"] for one in made.values()), made.keys()


def test_plain_text_has_the_column_text(tmp_path: Path, bpe: Path) -> None:
    lines = [f"line number {number} of them" for number in range(500)]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    made = encoded(tmp_path / "in.txt", tmp_path / "out", bpe, where="text like '%7%'")
    assert made.documents == sum("7" in line for line in lines)
    again = encoded(
        tmp_path / "in.txt", tmp_path / "map", bpe, where="text like '%7%'", map=map_functions.shout
    )
    assert again.documents == made.documents
    with pytest.raises(UsageError, match=r"^where .*'lang'.* text$"):
        encoded(tmp_path / "in.txt", tmp_path / "other", bpe, where="lang = 'en'")


def test_records_for_which_an_expression_fails_are_bad(tmp_path: Path, bpe: Path) -> None:
    rows = records(400)
    for number in (150, 151, 399):
        rows[number]["lang"] = "12x"
    for row in rows:
        row.setdefault("lang", None)
        if row["lang"] not in (None, "12x"):
            row["lang"] = "12"
    source = write(tmp_path / "in.jsonl", rows)
    condition = "lang::int = 12"
    with pytest.raises(RecordError, match=r"in\.jsonl:151") as error:
        encoded(source, tmp_path / "out", bpe, where=condition)
    assert error.value.line == 151
    made = encoded(source, tmp_path / "out", bpe, where=condition, on_error="skip")
    assert (made.rejected, made.adds_up) == (3, True)
    rejects = [
        json.loads(line) for line in Path(f"{tmp_path}/out.rejects.jsonl").read_text().splitlines()
    ]
    assert [one["line"] for one in rejects] == [151, 152, 400]


def test_bad_json_keeps_its_rules(tmp_path: Path, bpe: Path) -> None:
    lines = [json.dumps(row) for row in records(60)]
    lines[20] = '{"text": broken'
    lines[40] = '{"text": "nan", "id": NaN, "id": 41, "lang": "en"}'  # json takes it, the core not
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines) + "\n")
    for number, more in enumerate([{}, {"map": map_functions.same}]):
        made = encoded(
            source, tmp_path / f"out{number}", bpe, where="id < 50", on_error="skip", **more
        )
        assert (made.rejected, made.left_out, made.adds_up) == (1, 10, True)
        with pytest.raises(RecordError, match=r"in\.jsonl:21"):
            encoded(source, tmp_path / "failed", bpe, where="id < 50", **more)


WRONG = [
    ("first_of_batch", r"map: first_of_batch .*\b50 "),
    ("numbered", "map: numbered .*'text' of row 1: "),
    ("lost", r"map: lost .*\b49 .*\b50\b.*'__row__'"),
    ("backwards", "map: backwards .*'__row__'"),
    ("nothing", r"map: nothing .*\bNone\b.*RecordBatch"),
    ("other_column", r"'text'.* body\b"),
    ("numbers", r"'text' .*\bint64\b"),
]


@pytest.mark.parametrize(("name", "says"), WRONG)
def test_functions_that_no_batch_can_have_end_before_any_work(
    name: str, says: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", records(50))
    with pytest.raises(InputError, match=says):
        settled(source, map=getattr(map_functions, name))


def test_a_failing_function_is_named_with_its_line_and_the_records(
    tmp_path: Path, bpe: Path
) -> None:
    source = write(tmp_path / "in.jsonl", records())
    with pytest.raises(InputError) as error:
        encoded(source, tmp_path / "out", bpe, map=f"{FUNCTIONS}:fails_late", workers=2)
    said = str(error.value)
    assert "map_functions.py:" in said
    assert "in fails_late: KeyError: 'nothing for 1100'" in said
    first, last = said.rpartition("in.jsonl:")[2].rstrip(")").split("-")
    assert int(first) <= 1101 <= int(last)


def suffixed(suffix: str) -> Callable[[Any], Any]:
    """A function that differs from others of the same text by what it is bound to."""
    return lambda batch: {"text": [f"{text.as_py()}{suffix}" for text in batch["text"]]}


def test_only_a_version_says_that_a_function_is_the_same(tmp_path: Path, bpe: Path) -> None:
    source = write(tmp_path / "in.jsonl", records(50))

    def made(suffix: str, **more: Any) -> Any:
        encoded(source, tmp_path / "out", bpe, map=suffixed(suffix), **more)
        return dataset(tmp_path / "out")

    first = made(" A")
    for suffix in (" A", " B"):
        with pytest.raises(OutputError, match="map_version"):
            made(suffix)
    with pytest.raises(OutputError, match=r"map_version = None.*'1'"):
        made(" A", map_version="1")
    second = made(" B", overwrite=True)
    assert second != first
    assert made(" A", overwrite=True, map_version="1") == first
    assert made(" B", map_version="1") == first  # who names it answers for it: complete already
    with pytest.raises(OutputError, match=r"map_version = '1'.*'2'"):
        made(" B", map_version="2")
    with pytest.raises(OutputError, match=r"map_version = '1', .*\bNone\b"):
        made(" A")
    assert made(" B", map_version="2", overwrite=True) == second


def test_every_callable_is_taken(tmp_path: Path, bpe: Path) -> None:
    class Shout:
        batch: dict[str, Any]  # whose annotation is no parameter's

        def __call__(self, batch: Any) -> Any:
            return map_functions.shout(batch)

        def lists(self, batch: dict[str, Any]) -> Any:
            return map_functions.shout_lists(batch)

    scope: dict[str, Any] = {"shout": map_functions.shout, "__name__": "gone"}
    exec("def f(batch):\n    return shout(batch)\n", scope)  # no module, and no file
    source = write(tmp_path / "in.jsonl", records(50))
    encoded(source, tmp_path / "plain", bpe, map=map_functions.shout)
    ways: list[Any] = [Shout(), Shout().lists, scope["f"], functools.partial(map_functions.shout)]
    ways += [functools.partial(lambda one, batch: one(batch), map_functions.shout)]
    for number, way in enumerate(ways):
        encoded(source, tmp_path / f"out{number}", bpe, map=way)
        assert dataset(tmp_path / f"out{number}") == dataset(tmp_path / "plain")


@pytest.mark.parametrize("version", ["", " ", 2])
def test_a_version_is_a_name_and_needs_a_function(version: Any) -> None:
    with pytest.raises(UsageError, match=r"^map_version"):
        EncodeOptions(("in.jsonl",), map=map_functions.same, map_version=version)
    with pytest.raises(UsageError, match=r"^map_version='2' .*\bmap$"):
        EncodeOptions(("in.jsonl",), map_version="2")


def test_a_filtered_dataset_is_no_answer_to_a_plain_request(tmp_path: Path, bpe: Path) -> None:
    source = write(tmp_path / "in.jsonl", records(50))
    encoded(source, tmp_path / "out", bpe, where="id < 10")
    mapped = {"where": "id < 10", "map": map_functions.same, "map_version": "1"}
    for other in ({}, {"where": "id < 11"}, mapped):
        with pytest.raises(tokpack.TokpackError, match=r"out\.bin"):
            encoded(source, tmp_path / "out", bpe, **other)
    assert encoded(source, tmp_path / "out", bpe, where="id < 10").left_out == 40


def test_limit_counts_records_before_they_are_chosen(tmp_path: Path, bpe: Path) -> None:
    source = write(tmp_path / "in.jsonl", records(100))
    for more in ({}, {"map": map_functions.same}):
        made = encoded(
            source, tmp_path / f"out{len(more)}", bpe, where="id % 2 = 0", limit=31, **more
        )
        assert (made.records, made.left_out) == (31, 15)


def test_nothing_kept_is_an_error_that_says_why(tmp_path: Path, bpe: Path) -> None:
    source = write(tmp_path / "in.jsonl", records(20))
    with pytest.raises(InputError, match=r"in\.jsonl: .* 20 records, .*\b20 .*where"):
        encoded(source, tmp_path / "out", bpe, where="id < 0")


def test_shards_choose_alike(tmp_path: Path, bpe: Path) -> None:
    rows = records()
    for number in range(3):
        write(tmp_path / f"in{number}.jsonl", rows[400 * number :][:400])
    request: Any = {"where": "lang = 'en'", "map": f"{FUNCTIONS}:copies", "map_version": "1"}
    inputs = [str(tmp_path / f"in{number}.jsonl") for number in range(3)]
    whole = tmp_path / "whole"
    made = tokpack.plan(inputs, whole, shard_size=80_000, tokenizer=str(bpe), **request)
    assert made.shards > 1
    for number in range(made.shards):
        tokpack.encode_shard(whole, number)
    joined = tokpack.commit(whole)["text"]
    plain = encoded(inputs, tmp_path / "plain", bpe, **request)
    counts = ("records", "documents", "tokens", "left_out", "mapped_out", "mapped_in")
    assert [getattr(joined, name) for name in counts] == [getattr(plain, name) for name in counts]
    ids = b"".join(Path(f"{whole}-{n:05d}.bin").read_bytes() for n in range(made.shards))
    assert ids == Path(f"{tmp_path}/plain.bin").read_bytes()
    for unknown in ({"map": lambda batch: batch, "map_version": "1"}, {"map": request["map"]}):
        said = "<lambda>.* map='module:function'" if len(unknown) == 2 else r"\bmap_version\b"
        with pytest.raises(UsageError, match=said):
            tokpack.plan(inputs, tmp_path / "x", tokenizer=str(bpe), **unknown)


STOPS = {
    "part": stop_at_part(4),
    "end": STOP_AT_END,
    "rename": stop_at_rename(1),
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_run_that_is_killed_chooses_the_same(stop: str, place: Place) -> None:
    request: Any = {"where": "hash(text) % 3 > 0", "map": f"{FUNCTIONS}:copies"}
    request["map_version"] = "1"
    place.stop(STOPS[stop], **request)
    made = place.encode(**request)
    whole = place.encode(**request, output=str(place.folder / "whole"))
    assert dataset(place.output) == dataset(place.folder / "whole")
    counts = ("records", "documents", "tokens", "left_out", "mapped_out", "mapped_in")
    assert [getattr(made, name) for name in counts] == [getattr(whole, name) for name in counts]
    assert made.adds_up
    assert made.records == len(place.texts)
    assert min(made.left_out, made.mapped_out, made.mapped_in) > 0


@pytest.mark.parametrize("stop", ["part", "rename"])
def test_without_a_version_a_killed_run_begins_anew(
    stop: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.stop(STOPS[stop], map=f"{FUNCTIONS}:shout")
    status = run_status(str(place.output))
    assert status is not None
    assert status.plan is not None
    assert not status.plan.is_recognizable
    if stop == "part":  # and a command that looks for the dataset says how far it is
        how = "the same command starts from scratch"
        for command in ("inspect", "verify"):
            said = run(command, place.output, code=1).stderr
            assert re.search(rf"not finished: \w+, \d+% done; {how}", said)
    with open(FUNCTIONS) as file:
        text = file.read().replace(".upper()", ".lower()")
    (place.folder / "functions.py").write_text(text)
    request: Any = {"map": f"{place.folder}/functions.py:shout"}
    place.encode(**request)
    for said in (
        "discarded: map may have changed",
        "stopped, the next one starts from scratch",
    ):
        assert said in caplog.text
    place.encode(**request, output=str(place.folder / "whole"))
    assert dataset(place.output) == dataset(place.folder / "whole")


def test_a_function_of_a_dict_gets_lists(tmp_path: Path, bpe: Path) -> None:
    source = write(tmp_path / "in.jsonl", records(50))
    encoded(source, tmp_path / "a", bpe, map=map_functions.shout)
    encoded(source, tmp_path / "b", bpe, map=map_functions.shout_lists)
    assert dataset(tmp_path / "a") == dataset(tmp_path / "b")
    with pytest.raises(InputError, match=r"'upper'.*to_pylist\(\).*batch: dict"):
        encoded(source, tmp_path / "c", bpe, map=map_functions.shout_scalars)

    def plain(batch: dict, /) -> dict:  # type: ignore[type-arg]
        return batch

    assert choose.takes_dict(plain)
    assert choose.takes_dict(functools.partial(plain))
    assert not choose.takes_dict(lambda batch: batch)
    assert not choose.takes_dict(map_functions.same)


def test_functions_that_are_not_there() -> None:
    for named, says in [
        ("nocolon", "^map .*'nocolon'.*module:function"),
        ("no.such.module:f", r"'no\.such\.module:f': .*'no'"),
        ("nofile.py:f", r"'nofile\.py:f': .* nofile\.py$"),
        (f"{FUNCTIONS}:nofunction", "'nofunction'.* same, shout"),
    ]:
        with pytest.raises(UsageError, match=says):
            choose.load(named)


def test_a_module_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import os\n\n1 / 0\n")
    (tmp_path / "wrong.py").write_text("def f(:\n")
    with pytest.raises(UsageError, match=r"broken\.py:3"):
        choose.load(f"{tmp_path}/broken.py:f")
    with pytest.raises(UsageError, match=r"wrong.py:1: "):
        choose.load(f"{tmp_path}/wrong.py:f")

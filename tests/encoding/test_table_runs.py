"""The table of a run: every document has a row with its line, every other record one with why."""

from __future__ import annotations

import datetime
import functools
import io
import json
import random
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import forked
from support.encoding_tools import write_jsonl

import tokpack
from tokpack.dataset import Origins, digest_file
from tokpack.encoding import plan as plan_module
from tokpack.errors import FormatError, InputError, OutputError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

from support.table_twin import KEEP, check, check_table, lines_of, packed, record, small_parts  # noqa: E402

if TYPE_CHECKING:
    from tokpack.sources import Part

Line = st.sampled_from(("doc", "doc", "doc", "empty", "blank", "bad"))
File = st.tuples(
    st.sampled_from(("", "", "gz", "zst")),
    st.one_of(st.lists(Line, min_size=1, max_size=40), st.just(["doc"] * 90)),
    st.booleans(),
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    files=st.lists(File, min_size=1, max_size=4),
    empty=st.sampled_from(("skip", "skip", "document")),
    seed=st.integers(0, 1000),
)
def test_every_line_however_the_work_is_cut(
    bpe: Path, files: list[tuple[str, list[str], bool]], empty: str, seed: int
) -> None:
    if not any("doc" in lines for _, lines, _ in files):
        files[0][1].append("doc")
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        paths, kinds, records = [], [], []
        kept = ("doc", "empty") if empty == "document" else ("doc",)
        for number, (compression, lines, ends) in enumerate(files):
            made = [record(kind, i, rng) for i, kind in enumerate(lines)]
            data = b"\n".join(made)
            data += b"\n" if ends or lines[-1] == "blank" else b""
            path = Path(folder, f"{number}.jsonl" + (f".{compression}" if compression else ""))
            path.write_bytes(packed(data, compression))
            paths.append(str(path))
            kinds.append(lines)
            records += [
                (str(path), line, made[line - 1])
                for line, kind in enumerate(lines, 1)
                if kind in kept
            ]
        options: dict[str, Any] = {
            "tokenizer": str(bpe),
            "on_error": "skip",
            "empty": empty,
            "keep": KEEP,
            "input_format": "jsonl",
        }
        tokpack.encode(paths, f"{folder}/whole", workers=1, **options)
        small_parts(patch)
        tokpack.encode(paths, f"{folder}/cut", workers=1, **options)
        whole = Path(folder, "whole")
        check(whole, kinds, paths, empty=empty)
        check_table(whole, records)
        for suffix in ("docs.parquet", "dropped.parquet"):
            whole_too, cut = Path(folder, f"whole.{suffix}"), Path(folder, f"cut.{suffix}")
            assert whole_too.exists() == cut.exists()
            assert not cut.exists() or cut.read_bytes() == whole_too.read_bytes()
        check(Path(folder, "cut"), kinds, paths, empty=empty)


def test_all_ways_to_cut(bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte ranges, frames, segments of streams, and two real workers."""
    rng = random.Random(5)
    kinds = [rng.choices(("doc", "empty", "blank", "bad"), (90, 3, 4, 3), k=200) for _ in range(3)]
    paths = []
    for number, compression in enumerate(("", "gz", "zst")):
        lines = [record(kind, i, rng) for i, kind in enumerate(kinds[number])]
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(packed(b"\n".join(lines) + b"\n", compression))
        paths.append(str(path))
    options: dict[str, Any] = {"tokenizer": str(bpe), "on_error": "skip", "keep": KEEP}
    tokpack.encode(paths, str(tmp_path / "whole"), workers=1, **options)
    small_parts(monkeypatch)
    seen: set[str] = set()
    cut = plan_module.make_parts

    def noting(*args: Any, **more: Any) -> list[Part]:
        parts = cut(*args, **more)
        seen.update(part.kind for part in parts)
        return parts

    monkeypatch.setattr(plan_module, "make_parts", noting)
    for workers in (1, 2):
        output = tmp_path / f"cut{workers}"
        tokpack.encode(paths, str(output), workers=workers, **options)
        check(output, kinds, paths)
        assert digest_file(f"{output}.docs.parquet") == digest_file(tmp_path / "whole.docs.parquet")
    assert {"bytes", "frames", "stream"} <= seen


def test_other_kinds_of_input(bpe: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tokenizer": str(bpe), "on_error": "skip", "keep": ["n?"]}
    texts = ["one", "", "three", None, "five", "six"]
    rows = [i for i, text in enumerate(texts, 1) if text]

    table = tmp_path / "rows.parquet"
    parquet.write_table(
        arrow.table({"text": texts * 300, "n": range(1800)}), table, row_group_size=7
    )
    tokpack.encode(str(table), str(tmp_path / "a"), **options)
    assert lines_of(tmp_path / "a") == [6 * i + row for i in range(300) for row in rows]
    assert Origins(tmp_path / "a").find("rows.parquet", 10)[0].reason == "'text' is null"

    array = tmp_path / "array.json"
    array.write_text(json.dumps([{"text": text} for text in texts], indent=3))
    tokpack.encode(str(array), str(tmp_path / "b"), **options)
    assert lines_of(tmp_path / "b") == rows

    plain = tmp_path / "plain.txt"
    plain.write_bytes(b"\xef\xbb\xbfone\n\nthree\n\xff\nfive\nsix")
    tokpack.encode(str(plain), str(tmp_path / "c"), **options)
    assert lines_of(tmp_path / "c") == rows
    became = [Origins(tmp_path / "c").find("plain.txt", line)[0].became for line in (1, 2, 4)]
    assert became == ["document", "empty", "rejected"]

    archive = tmp_path / "all.tar"
    with tarfile.open(archive, "w") as tar:
        for name, data in (
            ("a.jsonl", b'{"text": "one"}\n\n{"text": "three"}\n'),
            ("b.txt", b"one document\nof two lines"),
            ("c.jsonl", b'{"text": 4}\n{"text": "six"}\n'),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    tokpack.encode(str(archive), str(tmp_path / "d"), **options)
    assert lines_of(tmp_path / "d") == [1, 3, 4, 6]


def test_standard_input_and_a_file_twice(bpe: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["one", "two", ""])
    words = f"-m tokpack encode - {path} {path} --trace --tokenizer {bpe} -o {tmp_path}/out"
    with forked.Process(words.split(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as run:
        run.communicate(b'{"text": "a"}\n\n{"text": "b"}')
    assert run.returncode == 0
    origins = Origins(tmp_path / "out")
    name = origins.sources[0]
    assert [str(o) for o in origins] == [f"{name}:1", f"{name}:3", *[f"{path}:1", f"{path}:2"] * 2]
    assert [origin.document for origin in origins.find("x.jsonl", 2)] == [3, 5]


def test_several_keys_sentences_and_a_limit(bpe: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    records = [
        {"a": "one", "b": ""},
        {"a": "", "b": "two"},
        {"a": 3, "b": "x"},
        {"a": "f", "b": "f"},
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in records * 3))
    options: dict[str, Any] = {"tokenizer": str(bpe), "on_error": "skip", "trace": True}
    keys = ["a", "b"]
    tokpack.encode(str(path), str(tmp_path / "out"), keys=keys, **options)
    assert lines_of(tmp_path / "out_a") == [1, 4, 5, 8, 9, 12]
    assert lines_of(tmp_path / "out_b") == [2, 4, 6, 8, 10, 12]
    (origin,) = Origins(tmp_path / "out_b").find("x.jsonl", 3)
    assert origin.became == "rejected"
    assert "'a' is a number" in origin.reason  # from the rejects of both
    tokpack.encode(str(path), str(tmp_path / "few"), keys=("a",), limit=5, **options)
    assert lines_of(tmp_path / "few") == [1, 4, 5]
    (origin,) = Origins(tmp_path / "few").find("x.jsonl", 6)
    assert origin.became == "nothing"
    assert "first 5 records" in origin.reason


def test_sentences(bpe: Path, tmp_path: Path) -> None:
    punkt = pytest.importorskip("nltk.tokenize.punkt")
    try:
        punkt.PunktTokenizer("english")
    except LookupError:
        pytest.skip("no Punkt models here")
    path = write_jsonl(tmp_path / "x.jsonl", ["One. Two. Three.", "", "Four. Five."])
    out = tmp_path / "out"
    manifest = tokpack.encode(
        str(path), str(out), tokenizer=str(bpe), split_sentences=True, trace=True
    )
    assert manifest.sequences > manifest.documents == 2
    assert lines_of(out) == [1, 3]


# -- what is there already


def test_a_table_comes_and_goes_with_its_dataset(bpe: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["one", "two"])
    out, table = tmp_path / "out", tmp_path / "out.docs.parquet"
    encode = functools.partial(tokpack.encode, str(path), str(out), tokenizer=str(bpe))
    plain = encode()
    assert plain.table is None
    assert "table" not in json.loads((tmp_path / "out.json").read_text())
    with pytest.raises(InputError, match="/out:"):
        Origins(out)
    with pytest.raises(OutputError, match=r"out\.bin .*trace = False"):
        encode(trace=True)
    traced = encode(trace=True, overwrite=True)
    assert (traced.bin, traced.idx) == (plain.bin, plain.idx)
    before = table.stat().st_mtime_ns
    again = encode()  # who asks for none is content with one
    assert again == traced == encode(trace=True)
    assert table.stat().st_mtime_ns == before
    assert len(Origins(out)) == 2
    with pytest.raises(OutputError, match=r"\bkeep = False, .*\['id'\]"):
        encode(keep=["id"])

    encode(append_eod=False, trace=True, overwrite=True)
    other = table.read_bytes()
    encode(trace=True, overwrite=True)
    table.write_bytes(other)
    with pytest.raises(FormatError, match=r"out\.docs\.parquet: .*\bdataset\b"):
        Origins(out)
    with pytest.raises(FormatError, match="xxh3_128"):
        tokpack.verify(out)
    table.write_bytes(other[:-1])
    with pytest.raises(FormatError, match=r"out\.docs\.parquet"):
        Origins(out)
    table.write_bytes(other)
    encode(append_eod=False, overwrite=True)
    assert not table.exists()

    table.write_text("somebody's own")
    with pytest.raises(OutputError, match=r"out\.docs\.parquet:"):
        encode(trace=True, overwrite=True)
    encode(overwrite=True)
    assert table.read_text() == "somebody's own"


def test_rows_of_documents_in_this_process(bpe: Path, tmp_path: Path) -> None:
    records = [
        {
            "text": f"text {n}",
            "id": n,
            "meta": {"a": [n]},
            "day": datetime.date(2024, 1, n % 28 + 1),
        }
        for n in range(300)
    ]
    keep = ["id", "meta.a", "day", "none?"]
    options: dict[str, Any] = {"tokenizer": str(bpe), "keep": keep, "workers": 2}
    tables = []
    for name, inputs in {
        "records": iter(records),
        "table": arrow.Table.from_pylist(records),
        "reader": arrow.Table.from_pylist(records).to_reader(max_chunksize=7),
    }.items():
        tokpack.encode(inputs, tmp_path / name, **options)
        table = parquet.read_table(tmp_path / f"{name}.docs.parquet")
        tables.append(table.drop_columns(["source"]))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    assert tables[0]["meta.a"].to_pylist()[:2] == ["[0]", "[1]"]
    assert tables[0]["day"].to_pylist()[0] == "2024-01-01"
    assert tables[0]["none"].null_count == 300


def test_integers_of_thousands_of_digits_are_text(bpe: Path, tmp_path: Path) -> None:
    long = "7" * 5000
    lines = [
        f'{{"text": "a", "n": {long}}}',
        f'{{"te\\u0078t": "read slowly", "n": {long}}}',
        f'{{"text": "b", "n": [{long}]}}',
        '{"text": "c", "n": 1}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    tokpack.encode(tmp_path / "in.jsonl", tmp_path / "out", tokenizer=bpe, keep="n")
    values = parquet.read_table(tmp_path / "out.docs.parquet")["n"].to_pylist()
    assert values[:2] == [long, long]
    assert (values[2].strip('["]'), values[3]) == (long, "1")
    tokpack.encode(iter([{"text": "a", "n": 7**9000}]), tmp_path / "in", tokenizer=bpe, keep="n")
    (value,) = parquet.read_table(tmp_path / "in.docs.parquet")["n"].to_pylist()
    assert value.isdigit()
    assert int(value[-9:]) == pow(7, 9000, 10**9)
    documents = iter([{"text": "a", "n": 7**9000}, {"text": "b", "n": 1}])
    options: dict[str, Any] = {"tokenizer": bpe, "map": lambda batch: batch, "on_error": "skip"}
    assert tokpack.encode(documents, tmp_path / "map", **options).documents == 2
    documents = iter([{"text": "a", "n": [7**9000]}])
    with pytest.raises(InputError, match="no JSON text"):
        tokpack.encode(documents, tmp_path / "not", tokenizer=bpe, keep="n", workers=1)


def test_another_value_in_a_table_is_another_input(bpe: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tokenizer": str(bpe), "keep": ["id"]}
    tokpack.encode(arrow.table({"text": ["a", "b"], "id": [1, 2]}), tmp_path / "out", **options)
    with pytest.raises(OutputError, match=r"out\.docs\.parquet"):
        tokpack.encode(arrow.table({"text": ["a", "b"], "id": [1, 3]}), tmp_path / "out", **options)

"""Documents of this process: what is taken for what, and the same bytes as of JSON lines."""

from __future__ import annotations

import functools
import io
import json
import random
import signal
import sqlite3
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support import forked
from support.encoding_tools import dataset, documents, pieces, write_jsonl

import tokpack
from tokpack.encoding import plan
from tokpack.errors import InputError, OutputError, RecordError, ResumeError, UsageError
from tokpack.sources import DocumentSegment, Source, in_process, tables
from tokpack.sources.base import Limits
from tokpack.sources.iterables import DocumentReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pa = pytest.importorskip("pyarrow", reason="needs the parquet extra")

TEXTS = documents(3000, words=30)
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
KEYS = ["text"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory, bpe: Path) -> tuple[bytes, bytes]:
    """The dataset of the same documents as JSON lines."""
    path = write_jsonl(tmp_path_factory.mktemp("lines") / "lines.jsonl", TEXTS)
    tokpack.encode(path, path.with_suffix(""), tokenizer=bpe, workers=1)
    return dataset(path.with_suffix(""))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = functools.partial(plan.make_parts, smallest_bytes=32 << 10)
    monkeypatch.setattr(plan, "make_parts", cut)
    monkeypatch.setattr(tables, "_GROUP_BYTES", 16 << 10)


def table() -> Any:
    return pa.table({"id": [row["id"] for row in ROWS], "text": TEXTS})


def chunked_view() -> Any:
    texts = pa.chunked_array([TEXTS[i : i + 77] for i in range(0, len(TEXTS), 77)])
    return pa.table({"text": texts.cast(pa.string_view())})


def hugging_face(*, shuffled: bool = False, streamed: bool = False) -> Any:
    datasets = pytest.importorskip("datasets", reason="needs the hf extra")
    order = list(range(len(TEXTS)))
    if shuffled:
        random.Random(1).shuffle(order)
    places = {number: place for place, number in enumerate(order)}
    made = datasets.Dataset.from_list([ROWS[number] for number in order])
    made = made.select([places[number] for number in range(len(order))]) if shuffled else made
    return made.to_iterable_dataset(num_shards=3) if streamed else made


def polars(what: str) -> Any:
    library = pytest.importorskip("polars", reason="needs polars")
    frame = library.DataFrame({"text": TEXTS, "other": [object()] * len(TEXTS)})
    return frame if what == "frame" else frame["text"]


def pandas(what: str) -> Any:
    library = pytest.importorskip("pandas", reason="needs pandas")
    frame = library.DataFrame({"text": TEXTS, "mixed": [1, "a", []] * (len(TEXTS) // 3)})
    return frame if what == "frame" else frame["text"]


def with_threads() -> Iterator[str]:
    """Documents that a thread makes, which holds a lock now and then."""
    lock, made = threading.Lock(), []

    def work() -> None:
        for text in TEXTS:
            with lock:
                made.append(text)

    thread = threading.Thread(target=work)
    thread.start()
    for number in range(len(TEXTS)):
        while len(made) <= number:
            pass
        with lock:
            yield made[number]
    thread.join()


TABLES: dict[str, Callable[[], Any]] = {
    "table": table,
    "string_view in chunks": chunked_view,
    "record batch": lambda: table().combine_chunks().to_batches()[0],
    "dataset": hugging_face,
    "dataset in an order of its own": lambda: hugging_face(shuffled=True),
    "pandas": lambda: pandas("frame"),
    "polars": lambda: polars("frame"),
}
STREAMS: dict[str, Callable[[], Any]] = {
    "generator": lambda: (text for text in TEXTS),
    "mappings": lambda: ROWS,
    "threads": with_threads,
    "reader": lambda: table().to_reader(max_chunksize=100),
    "iterable dataset": lambda: hugging_face(streamed=True),
    "mapped dataset": lambda: hugging_face(streamed=True).map(lambda row: row),
    "pandas series": lambda: pandas("series"),
    "polars series": lambda: polars("series"),
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", [*TABLES, *STREAMS])
@pytest.mark.usefixtures("small_parts")
def test_same_bytes_as_json_lines(
    kind: str, workers: int, lines: tuple[bytes, bytes], tmp_path: Path, bpe: Path
) -> None:
    made = ({**TABLES, **STREAMS})[kind]()
    output = tmp_path / "out"
    manifest = tokpack.encode(made, output, tokenizer=bpe, workers=workers, resume_key="one")
    assert dataset(output) == lines
    assert manifest.records == len(TEXTS)
    again = ({**TABLES, **STREAMS})[kind]()
    same = tokpack.encode(again, output, tokenizer=bpe, workers=2, resume_key="one")
    assert same.created == manifest.created
    other = table().slice(1) if kind in TABLES else iter(TEXTS)
    with pytest.raises(OutputError, match="another dataset"):
        tokpack.encode(other, output, tokenizer=bpe, resume_key="two")


def test_arrow_datasets(lines: tuple[bytes, bytes], tmp_path: Path, bpe: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow.dataset")
    parquet.write_table(table(), tmp_path / "a.parquet", row_group_size=500)
    whole = arrow.dataset(tmp_path / "a.parquet")
    manifest = tokpack.encode(whole, tmp_path / "whole", tokenizer=bpe, workers=2)
    assert dataset(tmp_path / "whole") == lines
    assert manifest.inputs[0]["format"] == "parquet"
    some = whole.filter(arrow.field("id") < 100)
    manifest = tokpack.encode(some, tmp_path / "some", tokenizer=bpe, workers=2)
    assert manifest.records == 100
    fragment = next(whole.get_fragments()).subset(row_group_ids=[0, 2])
    cut = arrow.FileSystemDataset([fragment], whole.schema, whole.format, whole.filesystem)
    assert tokpack.encode(cut, tmp_path / "cut", tokenizer=bpe, workers=2).records == 1000


@pytest.mark.parametrize("corpus", ["owt", "nasty"])
def test_a_real_corpus(corpus: str, shared: Path, tmp_path: Path, bpe: Path) -> None:
    """Records with errors are told by the same lines as those of the file."""
    path = shared / "corpora" / f"{corpus}.jsonl.zst"
    options: dict[str, Any] = {"tokenizer": bpe, "workers": 2, "on_error": "skip"}
    want = tokpack.encode(path, tmp_path / "file", **options)
    with path.open("rb") as file:
        unpacked = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(file).read()
    records = [json.loads(line) for line in unpacked.splitlines()]
    made = tokpack.encode((record for record in records), tmp_path / "mappings", **options)
    assert dataset(tmp_path / "mappings") == dataset(tmp_path / "file")
    assert (made.records, made.rejected, made.empty) == (want.records, want.rejected, want.empty)
    if not want.rejected:
        texts = pa.table({"text": [record["text"] for record in records]})
        tokpack.encode(texts, tmp_path / "table", **options)
        assert dataset(tmp_path / "table") == dataset(tmp_path / "file")


# -- segments ------------------------------------------------------------------------------------


def segments(
    made: Any, segment_bytes: int, block_bytes: int, most: int | None = None, **kind: bool
) -> list[DocumentSegment]:
    reader = DocumentReader("documents", made, **kind)
    limits = Limits(block_bytes, 1 << 20)
    read = reader.segments(KEYS, segment_bytes, limits, most)
    return [segment for segment in read if segment is not None]


def texts_of(found: list[DocumentSegment]) -> list[str]:
    texts = []
    for segment in found:
        assert segment.line == len(texts)
        for batch in segment.batches:
            docs = batch.documents["text"]
            assert docs.lines.tolist() == list(
                range(len(texts) - segment.line, len(texts) - segment.line + len(docs))
            )
            texts += [docs.text(number).decode() for number in range(len(docs))]
    return texts


SIZES = st.sampled_from([1, 40, 300, 5000])


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=60), max_size=200),
    segment_bytes=SIZES,
    block_bytes=SIZES,
    cuts=st.lists(st.integers(0, 200), max_size=4),
    most=st.none() | st.integers(0, 200),
)
def test_segments_depend_on_the_documents_alone(
    texts: list[str], segment_bytes: int, block_bytes: int, cuts: list[int], most: int | None
) -> None:
    plain = segments(iter(texts), segment_bytes, block_bytes, most)
    mapped = segments([{"a": 1, "text": text} for text in texts], segment_bytes, 1 << 20, most)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(texts)), len(texts)]
    pairs = list(pairwise(bounds))
    tables = [pa.table({"text": pa.array(texts[i:j], pa.string())}) for i, j in pairs]
    whole = [pa.table({"text": pa.array(texts, pa.string())})]
    cut = segments(tables, segment_bytes, block_bytes, most, as_tables=True)
    uncut = segments(whole, segment_bytes, 1 << 20, most, as_tables=True)
    for found in (plain, mapped, cut, uncut):
        assert texts_of(found) == texts[:most]
    for one, other in ((plain, mapped), (cut, uncut)):
        assert [x.checksum for x in one] == [x.checksum for x in other]
        assert len({x.checksum for x in one if x.records}) <= len(one)


def test_checksums_tell_documents_apart() -> None:
    sums = {
        segments(iter(texts), 1000, 1000)[0].checksum
        for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["abc", 1], ["abc", None])
    }
    assert len(sums) == 6


def test_long_documents_are_not_taken_together() -> None:
    taken = []

    def long() -> Iterator[str]:
        for number in range(300):
            taken.append(number)
            yield "x" * (1 << 17)

    reader = DocumentReader("documents", long())
    held = [
        len(taken)
        for segment in reader.segments(KEYS, 1 << 20, Limits(1 << 20, 1 << 20), None)
        if segment is None
    ]
    assert max(after - before for before, after in pairwise(held)) <= 4


# -- bad documents --------------------------------------------------------------------------------

BAD = [
    (5, "type int"),
    (None, "type NoneType"),
    (b"bytes", "type bytes"),
    (["a"], "type list"),
    ("lone \ud800", "lone surrogate"),
    ({"txt": "a"}, "no key 'text'"),
    ({"text": None}, "'text' is null"),
    ({"text": 1.5}, "a number, not a string"),
    ({"text": b"a"}, "a bytes, not a string"),
    ({"text": {"a": "b"}}, "an object, not a string"),
    ("x" * 200, "more than 150 bytes"),
]


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_documents(workers: int, tmp_path: Path, bpe: Path) -> None:
    options: dict[str, Any] = {"tokenizer": bpe, "workers": workers, "max_document_bytes": 150}
    for bad, reason in BAD:
        good = bad if isinstance(bad, dict) else "good"
        good = {"text": "good"} if isinstance(good, dict) else good
        with pytest.raises(RecordError, match="document number 71") as caught:
            tokpack.encode(iter([good] * 70 + [bad, good]), tmp_path / "a", **options)
        assert reason in str(caught.value)
        assert (caught.value.source, caught.value.line) == ("documents", 71)
    made = iter([{"text": "good"}, *(bad for bad, _ in BAD), "good"])
    manifest = tokpack.encode(made, tmp_path / "b", on_error="skip", trace=True, **options)
    assert (manifest.documents, manifest.rejected) == (2, len(BAD))
    rejects = tmp_path / "b.rejects.jsonl"
    listed = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [(one["source"], one["line"]) for one in listed] == [
        ("documents", number) for number in range(2, len(BAD) + 2)
    ]
    for one, (_, reason) in zip(listed, BAD, strict=True):
        assert reason in one["reason"]


@pytest.mark.parametrize("bad", [None, "a"])
def test_rows_that_are_no_mappings_are_told_alone(bad: Any) -> None:
    """Whatever documents are beside them."""
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    rows = [*connection.execute("select 'good' as text"), {"text": bad}]
    (segment,) = segments(iter([{"text": "a"}] * 40 + rows * 20), 1 << 20, 1 << 20)
    reasons = [record.reason for batch in segment.batches for record in batch.bad]
    assert [reason for reason in reasons if "null" not in reason] == [
        "the document is of type Row, not a str or a mapping of keys to texts: give dict(row)"
    ] * 20
    assert len(reasons) == (20 if bad else 40)


def test_a_mapping_that_is_filled_again() -> None:
    def filled() -> Iterator[dict[str, str]]:
        row: dict[str, str] = {}
        for text in TEXTS:
            row["text"] = text
            yield row

    assert texts_of(segments(filled(), 1 << 20, 1 << 20)) == TEXTS


def test_nulls_of_a_table(tmp_path: Path, bpe: Path) -> None:
    rows = pa.table({"text": ["a", None, "b"]})
    with pytest.raises(RecordError, match="table, document number 2: 'text' is null"):
        tokpack.encode(rows, tmp_path / "a", tokenizer=bpe)
    manifest = tokpack.encode(rows, tmp_path / "a", tokenizer=bpe, on_error="skip")
    assert (manifest.documents, manifest.rejected) == (2, 1)


def test_keys(tmp_path: Path, bpe: Path) -> None:
    rows = [{"a": {"b": text}, "c": text * 2} for text in TEXTS[:50]]
    made = tokpack.encode(rows, tmp_path / "x", keys=["a.b", "c"], tokenizer=bpe)
    write_jsonl(tmp_path / "in.jsonl", [])
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokpack.encode(tmp_path / "in.jsonl", tmp_path / "y", keys=["a.b", "c"], tokenizer=bpe)
    for key in made:
        assert dataset(tmp_path / f"x_{key}") == dataset(tmp_path / f"y_{key}")
    with pytest.raises(UsageError, match="have no keys"):
        tokpack.encode(iter(["a"]), tmp_path / "z", keys=["a", "c"], tokenizer=bpe)


def test_limit(tmp_path: Path, bpe: Path) -> None:
    endless = (f"document {number}" for number in iter(int, 1))
    assert tokpack.encode(endless, tmp_path / "a", tokenizer=bpe, limit=1000).records == 1000
    assert tokpack.encode(table(), tmp_path / "b", tokenizer=bpe, limit=10).records == 10


# -- what is taken for what -----------------------------------------------------------------------


def test_names_of_files(tmp_path: Path, bpe: Path) -> None:
    path = write_jsonl(tmp_path / "a b.jsonl", TEXTS[:5])
    for named in (str(path), path, [str(path)], (path,), tmp_path.glob("*.jsonl")):
        assert in_process(named, KEYS) == (str(path),)
    for named in ("some*.jsonl", "s3://a/b c", "@a b", f"{path}, {path}", [], "no-such-file"):
        assert in_process(named, KEYS) == ((named,) if named else ())
    for text in ("Hello world.", ["How are you?", "b"], "a\nb"):
        with pytest.raises(InputError, match=r"iter\(\[\.\.\.\]\)"):
            in_process(text, KEYS)
    with pytest.raises(UsageError, match="a list"):
        tokpack.encode(iter([str(path)]), tmp_path / "out", tokenizer=bpe)
    with pytest.raises(UsageError, match="a list of names"):
        in_process([path, {"text": "a"}], KEYS)


def test_what_is_refused(tmp_path: Path, bpe: Path) -> None:
    for given_, said in (
        (None, "None"),
        (5, "5"),
        (b"a", "b'a'"),
        ({"text": "a"}, "one document"),
        (io.StringIO("a"), "StringIO"),
        ({"a.jsonl", "b.jsonl"}, "give a list"),
        (pa.array(["a"]), "give it as pyarrow.table"),
        (iter([__file__]), "mappings"),
    ):
        with pytest.raises(UsageError, match=said):
            in_process(given_, KEYS)
    for rows, said in (
        (pa.table({"x": ["a"]}), "no column 'text'; the columns are x"),
        (pa.table({"text": [1]}), "int64, not text"),
        (pa.table({"text": pa.array([], pa.string())}), "empty"),
        (iter([]), "empty"),
    ):
        with pytest.raises(InputError, match=said):
            tokpack.encode(rows, tmp_path / "out", tokenizer=bpe)
    for options, said in (
        ({"output": None}, "output"),
        ({"output": "a", "input_format": "text"}, "input_format"),
        ({"output": "a", "hf_split": "train"}, "hf_split"),
        ({"output": "a", "resume_key": ""}, "resume_key"),
    ):
        with pytest.raises(UsageError, match=said):
            tokpack.encode(iter(TEXTS), tokenizer=bpe, **options)
    with pytest.raises(UsageError, match="plan is of files"):
        tokpack.plan(table(), tmp_path / "out", tokenizer=bpe)


def test_hugging_face_names_and_refusals() -> None:
    datasets = pytest.importorskip("datasets", reason="needs the hf extra")
    made = datasets.Dataset.from_dict({"text": ["a"]}, split="train")
    made.info.dataset_name = "wikitext"
    source = in_process(made, KEYS)
    assert isinstance(source, Source)
    assert source.name == "datasets:wikitext/train"
    with pytest.raises(UsageError, match="'train'"):
        in_process(datasets.DatasetDict(train=made), KEYS)
    with pytest.raises(UsageError, match=r"give iter\(dataset\)"):
        in_process(made.with_transform(dict), KEYS)
    with pytest.raises(InputError, match="no column 'txt'; the columns are text"):
        in_process(made, ["txt"])


def test_frames_that_cannot_be_read() -> None:
    library = pytest.importorskip("pandas", reason="needs pandas")
    for frame, said in (
        (library.DataFrame({"x": ["a"]}), "no column 'text'; the columns are x"),
        (library.DataFrame({"text": ["a", 5]}), "cannot become Arrow"),
    ):
        with pytest.raises(InputError, match=said):
            in_process(frame, KEYS)


@pytest.mark.parametrize("kind", ["string", "string_view", "dictionary"])
def test_a_table_in_other_chunks_is_the_same(kind: str) -> None:
    texts = ["a", None, "some text"] * 20
    arrays = [pa.chunked_array(cut) for cut in ([texts], [texts[:7], texts[7:]])]
    plain = [array.dictionary_encode() if kind == "dictionary" else array for array in arrays]
    made = [array.cast(kind) if kind == "string_view" else array for array in plain]
    sources = [in_process(pa.table({"text": array}), KEYS) for array in made]
    first, second = (one for one in sources if isinstance(one, Source))
    assert first.size == second.size == 60 * 4 + 20 * len("asome text")
    assert first.fingerprint() == second.fingerprint()


def test_a_text_that_begins_like_the_name_of_an_input() -> None:
    source = in_process(iter(["https://example.com is a site."]), KEYS)
    assert isinstance(source, Source)
    assert source.format == "documents"


def test_a_large_table_is_known_by_some_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint(rows: Any) -> str:
        source = in_process(rows, KEYS)
        assert isinstance(source, Source)
        return source.fingerprint()

    other = [*TEXTS[:-1], TEXTS[-1][:-1] + "!"]
    prints = [table(), pa.table({"text": TEXTS}), pa.table({"text": other})]
    assert len({fingerprint(one) for one in prints}) == 2
    monkeypatch.setattr(tables, "_HASHED_BYTES", 1000)
    assert len({fingerprint(one) for one in prints}) == 2


# -- stopped runs ---------------------------------------------------------------------------------


class OwnError(Exception):
    pass


def stops(output: Path, *, least: int = 2) -> Iterator[str]:
    """The documents, until the run has stored some; then an error."""
    for text in TEXTS * 20:
        if Path(f"{output}.unfinished/journal.jsonl").exists() and len(pieces(output)) >= least:
            raise OwnError
        yield text


def test_an_iterable_that_fails(tmp_path: Path, bpe: Path, small_parts: None) -> None:
    output = tmp_path / "out"
    options: dict[str, Any] = {"tokenizer": bpe, "workers": 2}
    whole = write_jsonl(tmp_path / "whole.jsonl", TEXTS * 20)
    tokpack.encode(whole, tmp_path / "whole", **options)
    with pytest.raises(OwnError) as caught:
        tokpack.encode(stops(output), output, resume_key="mine", **options)
    assert caught.traceback[-1].name == "stops"
    with pytest.raises(ResumeError, match="it has a resume_key"):
        tokpack.encode(iter(TEXTS * 20), output, **options)
    with pytest.raises(ResumeError, match="are not those of the run"):
        tokpack.encode(iter(["another", *TEXTS] * 20), output, resume_key="mine", **options)
    plan_ = json.loads(Path(f"{output}.unfinished/plan.json").read_text())
    first = segments(iter(TEXTS * 20), plan_["parts"][0]["end"], 1 << 20)[0].records
    for fewer in (TEXTS[:1], (TEXTS * 20)[:first]):
        with pytest.raises(ResumeError, match="are not those of the run"):
            tokpack.encode(iter(fewer), output, resume_key="mine", **options)


def test_a_run_without_a_resume_key_never_goes_on(
    tmp_path: Path, bpe: Path, small_parts: None
) -> None:
    output = tmp_path / "out"
    options: dict[str, Any] = {"tokenizer": bpe, "workers": 2}
    with pytest.raises(OwnError):
        tokpack.encode(stops(output), output, **options)
    for key, said in ((None, "without a resume_key"), ("mine", "it has no resume_key")):
        with pytest.raises(ResumeError, match=said):
            tokpack.encode(iter(TEXTS * 20), output, resume_key=key, **options)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_iterable_goes_on_where_it_was(
    workers: int, tmp_path: Path, bpe: Path, small_parts: None
) -> None:
    output = tmp_path / "out"
    options: dict[str, Any] = {"tokenizer": bpe, "workers": workers, "resume_key": "mine"}
    tokpack.encode(write_jsonl(tmp_path / "a.jsonl", TEXTS * 20), tmp_path / "whole", tokenizer=bpe)
    with pytest.raises(OwnError):
        tokpack.encode(stops(output), output, **options)
    with pytest.raises(ResumeError, match="another resume_key"):
        tokpack.encode(iter(TEXTS * 20), output, **{**options, "resume_key": "yours"})
    shown: list[Any] = []
    tokpack.encode(iter(TEXTS * 20), output, progress=shown.append, **options)
    assert shown[0].documents > 0
    assert dataset(output) == dataset(tmp_path / "whole")


KILLED = """
import functools, json, os, signal, sys
import pyarrow, tokpack
from tokpack.encoding import journal, plan, work
from tokpack.sources import tables
plan.make_parts = functools.partial(plan.make_parts, smallest_bytes=32 << 10)
tables._GROUP_BYTES = 16 << 10
path, output, tokenizer, kind = sys.argv[1:]
texts = [json.loads(line)["text"] for line in open(path)]
stored = []
def write(self, entry, real=journal.Journal.write):
    real(self, entry)
    stored.extend(entry.get("piece", {}) and [1])
    if len(stored) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
journal.Journal.write = write
made = pyarrow.table({"text": texts}) if kind == "table" else iter(texts)
tokpack.encode(made, output, tokenizer=tokenizer, workers=2, resume_key="mine")
"""


@pytest.mark.parametrize("kind", ["table", "generator"])
def test_a_killed_run_goes_on(
    kind: str, lines: tuple[bytes, bytes], tmp_path: Path, bpe: Path, small_parts: None
) -> None:
    path, output = write_jsonl(tmp_path / "a.jsonl", TEXTS), tmp_path / "out"
    done = forked.run(["-c", KILLED, path, output, bpe, kind], timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr
    options: dict[str, Any] = {"tokenizer": bpe, "workers": 2, "resume_key": "mine"}
    made: Any = pa.table({"text": TEXTS}) if kind == "table" else iter(TEXTS)
    other: Any = made.slice(1) if kind == "table" else iter(TEXTS[1:])
    with pytest.raises(ResumeError):
        tokpack.encode(other, output, **options)
    shown: list[Any] = []
    tokpack.encode(made, output, progress=shown.append, **options)
    assert shown[0].documents > 0
    assert dataset(output) == lines

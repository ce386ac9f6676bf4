"""Documents of this process: the same bytes as of JSON lines."""

from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from support.encoding_tools import dataset, write_jsonl
from support.in_process_tools import ROWS, TEXTS, table

import tokpack
from tokpack.errors import OutputError, RecordError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pa = pytest.importorskip("pyarrow", reason="needs the parquet extra")


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


@pytest.mark.parametrize(
    ("kind", "workers"),
    [*((kind, 3) for kind in [*TABLES, *STREAMS]), ("table", 1), ("mappings", 1), ("reader", 1)],
)
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
    with pytest.raises(OutputError):
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


def test_nulls_of_a_table(tmp_path: Path, bpe: Path) -> None:
    rows = pa.table({"text": ["a", None, "b"]})
    with pytest.raises(RecordError, match=r"^table, document number 2: 'text' "):
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
    with pytest.raises(UsageError, match=r"\bstr .*\bkeys\b"):
        tokpack.encode(iter(["a"]), tmp_path / "z", keys=["a", "c"], tokenizer=bpe)


def test_limit(tmp_path: Path, bpe: Path) -> None:
    endless = (f"document {number}" for number in iter(int, 1))
    assert tokpack.encode(endless, tmp_path / "a", tokenizer=bpe, limit=1000).records == 1000
    assert tokpack.encode(table(), tmp_path / "b", tokenizer=bpe, limit=10).records == 10

"""Documents of an iterable: its segments, and documents that are bad."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.in_process_tools import KEYS, TEXTS, segments, texts_of

import tokpack
from tokpack.errors import InputError, RecordError
from tokpack.sources.base import Limits
from tokpack.sources.iterables import DocumentReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pa = pytest.importorskip("pyarrow", reason="needs the parquet extra")


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


def test_bad_documents(tmp_path: Path, bpe: Path) -> None:
    options: dict[str, Any] = {"tokenizer": bpe, "workers": 2, "max_document_bytes": 150}
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
    with closing(sqlite3.connect(":memory:")) as connection:
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


def changed_inside(kind: str) -> Iterator[dict[str, Any]]:
    """The same object again and again, as readers of streams give it."""
    record: dict[str, Any] = {"text": "t", "meta": {"n": 0, "list": [{"deep": 0}]}, "array": [0]}
    record["array"] = np.zeros(2, np.int64) if kind == "array" else [0, 0]
    record["meta"]["text"] = ""
    for number in range(3000):
        record["meta"]["n"] = number
        record["meta"]["list"][0]["deep"] = number
        record["meta"]["text"] = f"number {number}"
        record["array"][0] = number
        yield record


@pytest.mark.parametrize("kind", ["array", "list"])
def test_an_object_that_is_changed_inside_is_read_when_it_comes(
    kind: str, tmp_path: Path, bpe: Path
) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")
    keep = ["n=meta.n", "meta", "array"]
    options: dict[str, Any] = {"keys": "meta.text", "tokenizer": bpe, "keep": keep}
    for where in (None, "meta.n < 2900"):
        if where and importlib.util.find_spec("duckdb") is None:
            continue
        out = tmp_path / f"o{bool(where)}"
        manifest = tokpack.encode(changed_inside(kind), out, where=where, **options)
        count = 2900 if where else 3000
        assert manifest.documents == count
        rows = pq.read_table(f"{out}.docs.parquet").to_pylist()
        assert [row["n"] for row in rows] == list(range(count))
        metas = [json.loads(row["meta"]) for row in rows]
        assert [meta["list"][0]["deep"] for meta in metas] == list(range(count))
        tokenizer, made = tokpack.load_tokenizer(bpe), tokpack.MMapIndexedDataset(out)
        texts = [tokenizer.decode(made[i].tolist()[:-1]) for i in range(0, count, 101)]
        assert texts == [f"number {i}" for i in range(0, count, 101)]


def test_conversations_that_are_changed_inside(tmp_path: Path, bpe: Path) -> None:
    pytest.importorskip("jinja2", reason="needs the chat extra")
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )

    def chats() -> Iterator[dict[str, Any]]:
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]
        for number in range(2500):
            messages[1]["content"] = f"number {number}"
            yield {"messages": messages}

    tokpack.encode(
        chats(), tmp_path / "o", tokenizer=bpe, chat=True, chat_template=str(template), workers=2
    )
    tokenizer, made = tokpack.load_tokenizer(bpe), tokpack.MMapIndexedDataset(tmp_path / "o")
    texts = [tokenizer.decode(made[i].tolist()) for i in range(len(made))]
    assert texts == [f"<user>q\n<assistant>number {i}\n" for i in range(2500)]


def test_a_document_nested_without_end_is_refused(tmp_path: Path, bpe: Path) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    options: dict[str, Any] = {"tokenizer": bpe, "keep": ["deep?"]}
    for before in (0, 2000):  # behind the first ones, too
        made = [{"text": "a"}] * before + [{"text": "a", "deep": deep}]
        with pytest.raises(InputError, match="deep"):
            tokpack.encode(iter(made), tmp_path / "o", **options)

"""Every edge case of the existing preprocessors, with its exact outcome."""

from __future__ import annotations

import hashlib
import io
import json
from typing import TYPE_CHECKING

import pytest
import zstandard
from support.sources_twin import WHOLE, in_segments, one_source, read_parts, read_whole, write

from tokpack.sources import Part, make_parts

if TYPE_CHECKING:
    from pathlib import Path

GOOD = [f"good document number {i}, some words.".encode() for i in range(200)]

# Of line 51 of each file, the only one that is not a plain good document.
REASONS = {
    "bad_utf8": "invalid UTF-8 at byte 14",
    "int_text": "'text' is a number, not a string",
    "list_text": "'text' is a list, not a string",
    "missing_key": "no key 'text'",
    "null_text": "'text' is null",
    "surrogate": "lone surrogate \\ud83d in 'text'",
}
TEXTS = {"dup_key": b"second", "key_after": b"escaped key", "nested_key": b"outer"}
COUNTS = {"blank": (3, 6), "crlf": (6, 6), "noeol": (15, 15), "ok": (15, 15)}


@pytest.fixture
def edge(edge_files: Path):
    return lambda name: str(edge_files / f"{name}.jsonl")


def test_no_edge_case_is_left_out(edge_files: Path) -> None:
    names = {path.stem for path in edge_files.iterdir()}
    assert names == {*REASONS, *TEXTS, *COUNTS, "bad_json"}


@pytest.mark.promises
@pytest.mark.parametrize("name", REASONS)
def test_bad_record(name: str, edge) -> None:
    got = read_whole(edge(name))
    assert got.reasons == [(50, REASONS[name])]
    assert got.texts == GOOD
    assert got.lines == 201


@pytest.mark.promises
def test_malformed_json(edge) -> None:
    got = read_whole(edge("bad_json"))
    ((line, reason),) = got.reasons
    assert line == 50
    assert reason.startswith("malformed JSON: Unterminated string")
    assert got.texts == GOOD


@pytest.mark.parametrize("name", TEXTS)
def test_good_record_of_an_odd_shape(name: str, edge) -> None:
    assert read_whole(edge(name)).records == list(enumerate([*GOOD[:50], TEXTS[name], *GOOD[50:]]))


@pytest.mark.parametrize("name", COUNTS)
def test_good_file_equals_what_python_reads(name: str, edge, edge_files: Path) -> None:
    got = read_whole(edge(name))
    raw = (edge_files / f"{name}.jsonl").read_bytes()
    want = [
        (number, json.loads(line)["text"].encode())
        for number, line in enumerate(raw.split(b"\n"))
        if line.strip()
    ]
    assert got.records == want
    assert (len(want), got.lines) == COUNTS[name]


def test_bom_at_the_start_is_no_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", b'\xef\xbb\xbf{"text": "a"}\n\xef\xbb\xbf{"text": "b"}\n')
    got = read_whole(path)
    assert got.texts == [b"a"]
    assert [(line, reason[:14]) for line, reason in got.reasons] == [(1, "malformed JSON")]


def test_records_that_are_no_objects(tmp_path: Path) -> None:
    lines = [b'{"text": "a"}', b"5", b'"x"', b"null", b"[1]", b"true", b"{", b'{"text": false}']
    lines.append(b'{"text": {"a": 1}}')
    got = read_whole(write(tmp_path, "a.jsonl", b"\n".join(lines)))
    assert got.texts == [b"a"]
    assert got.reasons == [
        (1, "the record is a number, not a JSON object"),
        (2, "the record is a string, not a JSON object"),
        (3, "the record is null, not a JSON object"),
        (4, "the record is a list, not a JSON object"),
        (5, "the record is true, not a JSON object"),
        got.reasons[5],
        (7, "'text' is false, not a string"),
        (8, "'text' is an object, not a string"),
    ]
    assert got.reasons[5][1].startswith("malformed JSON: ")


def test_slow_records_with_huge_numbers_and_deep_nesting(tmp_path: Path) -> None:
    digits = b"1" * 10_000
    deep = b"[" * 100_000 + b"]" * 100_000
    raw = b'{"text": "a", "n": %b, "text": "b"}\n{"text": "a", "n": %b, "text": "b"}\n'
    got = read_whole(write(tmp_path, "a.jsonl", raw % (digits, deep)))
    assert got.records == [(0, b"b"), (1, "malformed JSON: nested too deeply")]


@pytest.mark.parametrize("corpus", ["owt", "nasty"])
def test_corpus_equals_what_python_reads(corpus: str, data: Path, tmp_path: Path) -> None:
    stored = data / "corpora" / f"{corpus}.jsonl.zst"
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    raw = decoder.stream_reader(io.BytesIO(stored.read_bytes())).read()
    want = hashlib.sha256()
    for line in raw.split(b"\n"):
        if line.strip():
            text = json.loads(line)["text"].encode()
            want.update(b"%d:%b" % (len(text), text))

    plain = one_source(write(tmp_path, "plain.jsonl", raw))
    packed = one_source(str(stored))
    third = len(raw) // 3
    for source, parts in (
        (plain, [WHOLE]),
        (plain, [Part(0, "bytes", 0, third, 0), Part(0, "bytes", third, len(raw), 0)]),
        (plain, make_parts([plain], ways=2, smallest_bytes=1 << 20)),
        (packed, in_segments(1 << 22)),
    ):
        got = read_parts(source, parts)
        found = hashlib.sha256()
        for text in got.texts:
            found.update(b"%d:%b" % (len(text), text))
        assert got.reasons == []
        assert got.text_bytes == len(raw)
        assert found.digest() == want.digest()

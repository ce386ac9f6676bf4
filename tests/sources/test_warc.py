"""WET files: the texts of pages as other readers of WARC give them."""

from __future__ import annotations

import functools
import random
import re
from typing import TYPE_CHECKING

import pytest
from support.archives import tar
from support.sources_twin import COMPRESS, WHOLE, one_source, read_parts, read_whole, write

import tokpack
from tokpack.errors import InputError
from tokpack.sources import discover, make_parts, read
from tokpack.sources.detect import NoTextError

if TYPE_CHECKING:
    from pathlib import Path


def record(kind: str, content: bytes, **header: str) -> bytes:
    fields = {"WARC-Type": kind, **{name.replace("_", "-"): one for name, one in header.items()}}
    lines = ["WARC/1.0", *(f"{name}: {value}" for name, value in fields.items())]
    head = "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""])
    return head.encode() + content + b"\r\n\r\n"


INFO = record("warcinfo", b"isPartOf: CC-MAIN-2026", WARC_Date="2026-01-01T00:00:00Z")
TRAP = "\r\n\r\nWARC/1.0\r\nWARC-Type: response\r\nContent-Length: 9\r\n\r\n"


@functools.cache
def pages() -> list[dict[str, str]]:
    rng = random.Random(1)
    found = []
    for number in range(300):
        text = "".join(rng.choices(["word ", "é", "字", "\n", "\r\n", "\n\n", TRAP], k=number % 90))
        page = {
            "text": text,
            "url": f"https://a.example/{number}?q=é",
            "id": f"<urn:uuid:{number}>",
        }
        if number % 2:
            page["language"] = "deu,eng"
        found.append(page)
    return found


def wet(found: list[dict[str, str]]) -> list[bytes]:
    records = [INFO]
    for page in found:
        about = {
            "WARC_Target_URI": page["url"],
            "WARC_Record_ID": page["id"],
            "WARC_Date": "2026-01-01T00:00:00Z",
        }
        if "language" in page:
            about["WARC_Identified_Content_Language"] = page["language"]
        records.append(record("conversion", page["text"].encode(), **about))
    return records


TEXTS = [page["text"].encode() for page in pages()]


def packed(records: list[bytes], how: str) -> bytes:
    if how == "gz":  # as Common Crawl does: each record is a member
        return b"".join(map(COMPRESS["gz"], records))
    return COMPRESS[how](b"".join(records))


@pytest.mark.parametrize("how", COMPRESS)
def test_the_texts_of_pages(how: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a", packed(wet(pages()), how))
    source = one_source(path)
    assert (source.format, source.compression) == ("wet", how)
    assert [part.kind for part in make_parts([source], ways=4)] == ["whole"]
    got = read_parts(source, [WHOLE], block_bytes=3000)
    assert got.records == list(enumerate(TEXTS))
    assert got.bytes_read == source.size
    assert read_whole(path, "wet").texts == TEXTS


def test_other_readers_give_the_same(tmp_path: Path) -> None:
    warcio = pytest.importorskip("warcio.archiveiterator", reason="needs warcio")
    path = write(tmp_path, "a.warc.wet.gz", packed(wet(pages()), "gz"))
    with open(path, "rb") as file:
        records = warcio.ArchiveIterator(file)
        theirs = [one.content_stream().read() for one in records if one.rec_type == "conversion"]
    assert read_whole(path).texts == theirs


def test_line_feeds_alone_and_folded_fields(tmp_path: Path) -> None:
    raw = (
        b"WARC/1.1\nwarc-type: conversion\nWARC-Target-URI: https://a\n .example\n"
        b"content-length: 4\n\na\n\nb\n\n\n\nWARC/1.1\nWARC-TYPE: conversion\nContent-Length:1\n\nc"
    )
    source = one_source(write(tmp_path, "a", raw))
    batches = list(read(source, WHOLE, ["text"], columns=["url"]))
    assert read_parts(source, [WHOLE]).texts == [b"a\n\nb", b"c"]
    columns = batches[0].documents["text"].columns
    assert columns["url"].to_pylist() == ["https://a .example", None]


@pytest.mark.parametrize("kind", ["response", "request", "resource", "revisit", "metadata"])
def test_other_records_are_refused(kind: str, tmp_path: Path) -> None:
    other = record(kind, b"HTTP/1.1 200 OK\r\n\r\n<html>")
    for records in ([other], [INFO, other]):
        with pytest.raises(NoTextError, match=rf"a\.warc\.gz: .*\bWARC\b.* {kind} "):
            discover([write(tmp_path, "a.warc.gz", packed(records, "gz"))])
    path = write(tmp_path, "a.warc.wet.gz", packed([*wet(pages()), other], "gz"))
    with pytest.raises(NoTextError, match=rf"a\.warc\.wet\.gz: .* {kind}"):
        read_whole(path)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_file_that_is_cut_off(cut: int, tmp_path: Path) -> None:
    raw = b"".join(wet(pages()[:20]))
    end = raw.rindex(b"WARC/1.0\r\nWARC-Type: conversion")
    stop = {1: end + 30, 2: len(raw) - 10, 3: raw.index(b"isPartOf") + 4}[cut]
    path = write(tmp_path, "a.wet", raw[:stop])
    with pytest.raises(InputError, match=r"a\.wet: WARC record \d+"):
        read_whole(path)


@pytest.mark.parametrize("length", [b"-1", b"x", b"1e3", b"\xd9\xa1", b""])
def test_lengths_that_are_none(length: bytes, tmp_path: Path) -> None:
    raw = INFO + b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: %b\r\n\r\nabc" % length
    with pytest.raises(InputError, match="WARC record 2: Content-Length"):
        read_whole(write(tmp_path, "a.wet", raw))
    with pytest.raises(InputError, match=r"WARC record 2 .*WARC/"):
        read_whole(write(tmp_path, "a.wet", INFO + b"text without a header"))


def test_bad_pages_are_bad_records(tmp_path: Path) -> None:
    contents = [b"good", b"\xff", b"x" * 101, b"x" * (3 << 20), b"good"]
    raw = b"".join(
        record("conversion", one, WARC_Target_URI=f"u{i}") for i, one in enumerate(contents)
    )
    got = read_whole(write(tmp_path, "a.wet", raw), max_document_bytes=100)
    assert got.texts == [b"good", b"good"]
    too_long = "a document of more than 100 bytes"
    assert got.reasons == [
        (1, "invalid UTF-8 at byte 0 (u1)"),
        (2, f"{too_long} (u2)"),
        (3, f"{too_long} (u3)"),
    ]


def test_pages_in_an_archive_and_in_a_folder(tmp_path: Path) -> None:
    raw = packed(wet(pages()), "gz")
    (tmp_path / "crawl").mkdir()
    write(tmp_path / "crawl", "00000.warc.wet.gz", raw)
    write(tmp_path / "crawl", "00000.warc.gz", packed([INFO, record("response", b"")], "gz"))
    (source,) = discover([str(tmp_path / "crawl")])
    assert read_parts(source, [WHOLE]).texts == TEXTS
    path = write(tmp_path, "a.tar", tar({"a.warc.wet.gz": raw, "b.txt": b"text"}))
    assert read_whole(path).texts == [*TEXTS, b"text"]


@pytest.mark.parametrize("chosen", [False, True])
def test_values_beside_the_text(chosen: bool, tmp_path: Path, bpe: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")
    if chosen:
        pytest.importorskip("duckdb", reason="needs the select extra")
    path = write(tmp_path, "a.wet", b"".join(wet(pages())))
    where = "language like 'deu%' and url <> 'https://a.example/7?q=é'" if chosen else None
    manifest = tokpack.encode(
        path, tmp_path / "o", tokenizer=bpe, keep=["url", "language", "id", "date"], where=where
    )
    rows = [one for one in pages() if one["text"]]
    if chosen:
        rows = [one for one in rows if "language" in one and "/7?" not in one["url"]]
    table = pq.read_table(tmp_path / "o.docs.parquet")
    for name in ("url", "language", "id"):
        assert table[name].to_pylist() == [one.get(name) for one in rows]
    assert set(table["date"].to_pylist()) == {"2026-01-01T00:00:00Z"}
    assert manifest.inputs[0]["format"] == "wet"


def test_the_function_of_a_run_gets_all_values(tmp_path: Path, bpe: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the parquet extra")
    path = write(tmp_path, "a.wet", b"".join(wet(pages()[:50])))

    def titled(batch: dict) -> dict:
        rows = zip(batch["url"], batch["language"], batch["text"], strict=True)
        return {"text": [f"{url} {lang} {re.sub('x', '', text)}" for url, lang, text in rows]}

    manifest = tokpack.encode(path, tmp_path / "o", tokenizer=bpe, map=titled)
    assert manifest.documents == 50

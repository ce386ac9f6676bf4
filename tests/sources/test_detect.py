"""Files that are not what their names say: refused, skipped and counted, or read for what they
are."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.archives import tar, zipped
from support.sources_twin import COMPRESS, WHOLE, one_source, read_parts, read_whole, write

import tokpack
from tokpack.errors import FormatError, InputError, TokenizerError
from tokpack.sources import discover, read
from tokpack.sources.detect import NoTextError

if TYPE_CHECKING:
    from pathlib import Path

LINES = b'{"text": "a"}\n{"text": "b"}\n'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize 123\n" % (b"a" * 64)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Log in</title></head></html>\n"
DENIED = b"Access to dataset org/name is restricted. You must be authenticated.\n"
ERROR = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'
PROMISES = [
    *(
        ".parquet",
        ".arrow",
        ".feather",
        ".ipc",
        ".tar",
        ".zip",
        ".gz",
        ".xz",
        ".bz2",
        ".zst",
        ".7z",
    ),
    *(".tar.gz", ".tgz", ".jsonl.zst", ".csv.gz", ".txt.xz", ".warc.wet.gz", ".PARQUET"),
]
POINTERS = {
    "as it is": POINTER,
    "with CRLF": POINTER.replace(b"\n", b"\r\n"),
    "with a BOM": b"\xef\xbb\xbf" + POINTER,
    "behind white space": b"\n \n" + POINTER,
    "of its first name": POINTER.replace(b"git-lfs", b"hawser"),
    "joined": POINTER * 20,
    "git-annex": b"/annex/objects/SHA256E-s12--ab.parquet\n",
}


def ways_to_name(path: str) -> list[str]:
    folder, _, name = path.rpartition("/")
    return [path, f"{folder}/{name[0]}*", folder]


@pytest.mark.parametrize("pointer", POINTERS.values(), ids=POINTERS)
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.txt", "a.csv", "a", "a.jsonl.zst"])
@pytest.mark.parametrize("input_format", ["auto", "text", "jsonl"])
def test_a_pointer_is_no_document_whatever_its_name(
    pointer: bytes, name: str, input_format: str, tmp_path: Path
) -> None:
    path = write(tmp_path, name, pointer)
    write(tmp_path, "good.jsonl", LINES)
    for named in ways_to_name(path):
        with pytest.raises(NoTextError, match=r"pointer .*(git lfs pull|git annex get)") as raised:
            discover([named], input_format=input_format)
        assert path in str(raised.value)


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_pointer_that_was_compressed_or_packed(compression: str, tmp_path: Path) -> None:
    with pytest.raises(NoTextError):
        discover([write(tmp_path, "a.jsonl.x", COMPRESS[compression](POINTER))])
    for pack in (tar, zipped):
        path = write(tmp_path, "a", pack({"good.txt": b"text", "b.txt": POINTER}))
        with pytest.raises(NoTextError, match=r"a/b\.txt"):
            read_whole(path)
        assert read_whole(path, "file").texts == [b"text"]


@pytest.mark.parametrize("name", ["a" + suffix for suffix in PROMISES])
@pytest.mark.parametrize(
    "raw",
    [
        *(PAGE, b"\xef\xbb\xbf\n " + PAGE, b"<HTML>", PAGE.decode().encode("utf-16")),
        *(DENIED, ERROR, b"", b"\n", bytes(100), b"caf\xe9", b"5\n", b'{"error":"No","text":"x"}'),
    ],
)
def test_what_a_name_promises_is_there_or_refused(name: str, raw: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, name, raw)
    write(tmp_path, "good.jsonl", LINES)
    for named in ways_to_name(path)[: 2 if name in ("a.7z", "a.pdf") else 3]:
        with pytest.raises(NoTextError, match=r"/a\.") as raised:
            discover([named])
        assert path in str(raised.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.jsonl.gz", "a.tar.gz"])
def test_a_page_is_no_table_and_no_json(name: str, tmp_path: Path) -> None:
    raw = COMPRESS["gz"](PAGE) if name.endswith("gz") else PAGE
    with pytest.raises(NoTextError, match=r"/a\."):
        discover([write(tmp_path, name, raw)])


@pytest.mark.parametrize(
    ("name", "raw", "format_"),
    [
        ("a.jsonl.gz", LINES, "jsonl"),
        ("a.json.zst", b'[{"text": "a"}, {"text": "b"}]', "json"),
        ("a.parquet", LINES, "jsonl"),
        ("a.jsonl.gz", b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}', "jsonl"),
        ("a.jsonl.gz", b'{\n "text": "a"}\n{"text": "b"}', "json"),
    ],
)
def test_json_is_read_and_told(
    name: str, raw: bytes, format_: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = one_source(write(tmp_path, name, raw))
    assert (source.format, source.compression) == (format_, "")
    assert read_parts(source, [WHOLE]).texts == [b"a", b"b"]
    assert name in caplog.text
    assert "unpacked" in caplog.text


@pytest.mark.parametrize(
    ("name", "raw", "format_"),
    [
        ("a.jsonl.gz", COMPRESS["zst"](LINES), "jsonl"),  # another compression
        ("a.tar.gz", tar({"b.jsonl": LINES}), "archive"),  # unpacked by a browser
        ("a.gz", COMPRESS["gz"](b"plain text\n"), "text"),
        ("a.jsonl", b"", "jsonl"),
        ("a.txt", b"<html> is the first tag of a page\n", "text"),
        ("a.jsonl.gz", COMPRESS["gz"](b""), "jsonl"),
    ],
)
def test_what_is_right_is_read(name: str, raw: bytes, format_: str, tmp_path: Path) -> None:
    assert one_source(write(tmp_path, name, raw)).format == format_


def test_the_request_says_what_text_is(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt.gz", b"plain text\n")
    assert read_whole(path, "text").texts == [b"plain text"]


def test_pages_read_as_text_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "a.txt", PAGE)
    assert one_source(path).format == "text"
    assert f"{path}: read as plain text" in caplog.text


def office(*names: str) -> bytes:
    return zipped(dict.fromkeys(names, b"<xml/>"))


def numpy_file(save: Any) -> bytes:
    file = io.BytesIO()
    save(file, np.zeros(3))
    return file.getvalue()


def epub() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("a.xhtml", "<p>text</p>")
    return file.getvalue()


OTHERS = {
    "a.pdf": (b"%PDF-1.4\nsome ASCII\n", "a PDF"),
    "b.rtf": (b"{\\rtf1\\ansi text}", "an RTF document"),
    "c.docx": (office("[Content_Types].xml", "word/document.xml"), "an Office document"),
    "d.xlsx": (office("docProps/app.xml", "xl/workbook.xml"), "an Office document"),
    "e.doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "an Office document"),
    "f.epub": (epub(), "an EPUB book"),
    "g.png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "an image"),
    "h.jpg": (b"\xff\xd8\xff\xe0\0\x10JFIF", "an image"),
    "i.webp": (b"RIFF\x24\0\0\0WEBPVP8 \0", "an image"),
    "j.mp4": (b"\0\0\0\x20ftypisom", "a sound or film"),
    "k.pkl": (pickle.dumps({"text": [1] * 300}), "a pickle"),
    "l.pt": (office("archive/data.pkl", "archive/version"), "a pickle"),
    "m.safetensors": (b"\x40\0\0\0\0\0\0\0" + b'{"a":{"dtype":"F32"}}', "a file of weights"),
    "n.npy": (numpy_file(np.save), "a file of numpy arrays"),
    "o.npz": (numpy_file(np.savez), "a file of numpy arrays"),
    "p.db": (b"SQLite format 3\0" + bytes(84), "a table in a format that is not read"),
    "q.7z": (b"7z\xbc\xaf\x27\x1c\0\x04", "a 7z archive"),
    "r.warc": (b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 0\r\n\r\n", "a WARC file"),
    "s.facts": (b'{\n  "tokpack": {\n    "manifest": 2', "the manifest of a dataset"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_has_no_text_is_refused_by_what_it_is(name: str, tmp_path: Path) -> None:
    raw, what = OTHERS[name]
    for named in (name, "noname", "a.txt"):
        with pytest.raises(NoTextError, match=f"/{named}: .*{what}") as raised:
            discover([write(tmp_path, named, raw)])
        assert "on_error" not in str(raised.value)
    with pytest.raises(NoTextError):
        discover([write(tmp_path, name, raw)], input_format="file")


@pytest.mark.parametrize("input_format", ["auto", "file"])
def test_a_folder_counts_others_by_kind(
    input_format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, (raw, _) in OTHERS.items():
        write(tmp_path, name, raw)
    write(tmp_path, "good.jsonl", LINES)
    (source,) = discover([str(tmp_path)], input_format=input_format)
    assert source.path.endswith("good.jsonl")
    counts = [what for _, what in OTHERS.values()]
    for what in counts:
        assert re.search(rf"with {what}[^:]*: {counts.count(what)} \(", caplog.text)
    assert f"{len(OTHERS)} files skipped" in caplog.text


@pytest.mark.parametrize(
    "begin", [b"BM", b"GIF8", b"ID3", b"ORC", b"RIFF", b"OggS", b"GGUF", b"7z"]
)
def test_text_and_names_may_begin_as_other_kinds_do(begin: bytes, tmp_path: Path) -> None:
    text = begin + b"s are not what they seem\n"
    assert read_whole(write(tmp_path, "a", text)).texts == text.splitlines()
    packed = tar({f"{begin.decode()}W/a.txt": b"text"}, folder=False)
    assert read_whole(write(tmp_path, "a.tar", packed)).texts == [b"text"]


def test_a_text_of_comments_is_looked_at_in_no_time(tmp_path: Path) -> None:
    text = b"<!-- a comment --> " * 3000 + b"and a text"
    assert read_whole(write(tmp_path, "a.txt", text)).texts == [text]


LEFT = {
    "unfinished downloads": [
        *("b.jsonl.part", "c.jsonl.incomplete", "d.jsonl.crdownload", "e.jsonl.tmp"),
        *("f.jsonl.aria2", "g.jsonl.partial", "h.jsonl.download", "i.jsonl.gz.PART"),
    ],
    "backups": ["j.jsonl~", "k.jsonl.bak", "l.jsonl.swp", "#m.jsonl#", "n.jsonl.orig"],
}


def test_what_programs_leave_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sub").mkdir()
    for names in LEFT.values():
        for name in names:
            write(tmp_path / "sub", name, LINES)
    write(tmp_path, "_metadata", b"PAR1")
    good = write(tmp_path / "sub", "a.jsonl", LINES)
    for input_format in ("auto", "file"):
        assert good in [one.path for one in discover([str(tmp_path)], input_format=input_format)]
    for named in (str(tmp_path), f"{tmp_path}/**", f"{tmp_path}/sub/*", f"{tmp_path}/s*"):
        caplog.clear()
        sources = discover([named])
        assert [one.path for one in sources if "sub" in one.path] == [good]
        for why, names in LEFT.items():
            assert f"{why}: {len(names)}" in caplog.text
    part = f"{tmp_path}/sub/b.jsonl.part"
    assert [one.path for one in discover([f"{tmp_path}/*/*.part"])] == [part]
    assert [one.path for one in discover([part])] == [part]


def test_pointers_to_what_is_not_read_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.png", "model.safetensors", "weights.bin", "README.md"):
        write(tmp_path, name, POINTER)
    write(tmp_path, "good.jsonl", LINES)
    assert len(discover([str(tmp_path)])) == 1
    assert "pointers of Git to files: 3" in caplog.text
    write(tmp_path, "data", POINTER)
    with pytest.raises(NoTextError, match=r"data: .*git lfs pull"):
        discover([str(tmp_path)])


def test_a_saved_dataset_of_pointers(tmp_path: Path) -> None:
    write(tmp_path, "state.json", b'{"_data_files": [{"filename": "data.arrow"}]}')
    write(tmp_path, "data.arrow", POINTER)
    with pytest.raises(NoTextError):
        discover([str(tmp_path)])
    write(tmp_path, "state.json", POINTER)
    with pytest.raises(InputError, match="git lfs pull"):
        discover([str(tmp_path)])


@pytest.mark.parametrize("name", ["tokenizer.json", "a.model", "a.tiktoken", "tekken.json"])
def test_a_tokenizer_that_is_a_pointer(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, POINTER)
    pattern = {"pattern": "cl100k"} if name == "a.tiktoken" else {}
    with pytest.raises(TokenizerError, match="git lfs pull"):
        tokpack.load_tokenizer(path, **pattern)


def test_a_dataset_that_is_a_pointer(tmp_path: Path) -> None:
    with tokpack.MMapIndexedDatasetBuilder(tmp_path / "a.bin", dtype=np.uint16) as builder:
        builder.add_item([1, 2, 3])
        builder.end_document()
        builder.finalize(tmp_path / "a.idx")
    for suffix in ("bin", "idx"):
        path = tmp_path / f"a.{suffix}"
        right = path.read_bytes()
        path.write_bytes(POINTER)
        with pytest.raises(FormatError, match=rf"a\.{suffix}: .*git lfs pull"):
            tokpack.MMapIndexedDataset(tmp_path / "a")
        path.write_bytes(right)
    for options in ({}, {"from_": "raw", "input_dtype": "uint16", "eod": 1}):
        path = write(tmp_path, "b.npy", POINTER)
        with pytest.raises((FormatError, InputError), match="git lfs pull"):
            tokpack.convert(path, tmp_path / "c", **options)


def test_the_documents_of_a_folder_half_fetched(tmp_path: Path) -> None:
    """One real parquet file and one pointer: two thirds of a corpus would be missing."""
    pa = pytest.importorskip("pyarrow", reason="needs the parquet extra")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "a.parquet")
    path = write(tmp_path, "b.parquet", POINTER)
    with pytest.raises(NoTextError):
        discover([str(tmp_path)])
    with pytest.raises(NoTextError):
        discover([path], input_format="parquet")
    (batch,) = read(one_source(f"{tmp_path}/a.parquet"), WHOLE, ["text"])
    assert len(batch.documents["text"]) == 2

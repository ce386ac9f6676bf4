"""--input-format file: a file is a document, as is a member of an archive that is named itself."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support.archives import tar, zipped
from support.encoding_tools import byte_tokenizer
from support.sources_twin import COMPRESS, WHOLE, one_source, read_parts, write

import tokpack
from tokpack.errors import InputError, RecordError, UsageError
from tokpack.sources import discover, make_parts, read

FILES = {
    "__init__.py": b"",
    "a.json": b'{"text": 1}\n\n[2]\n',
    "a.py": "a = 'é\u2028'\r\n\r\n".encode(),
    "README.md": b"\xef\xbb\xbf# Title\n\ntext\n",
    "sub/LICENSE": b"x" * 70_000,
    "sub/notes.txt.gz": COMPRESS["gz"](b"one\n\ntwo\n"),
}
OTHERS = {
    ".hidden": b"no",
    "sub/.git": b"no",
    "logo.png": b"\x89PNG\0\0",
    "pack.tar": tar({"inner.txt": b"inner"}),
    "pack.zip": zipped({"inner.txt": b"inner"}),
    "utf16.txt": "text".encode("utf-16"),
}
WANT = {
    **FILES,
    "README.md": b"# Title\n\ntext\n",
    "sub/notes.txt.gz": b"one\n\ntwo\n",
}


def folder_of(files: dict[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def in_order(names: dict[str, bytes]) -> list[str]:
    return sorted(names, key=lambda name: os.fsencode(name).split(b"/"))


def documents_of(inputs: str) -> list[tuple[str, list[bytes]]]:
    sources = discover([inputs], input_format="file")
    return [(s.name, read_parts(s, [WHOLE]).texts) for s in sources]


def test_the_text_files_of_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of(FILES | OTHERS, tmp_path / "src")
    (folder / "lost").symlink_to("nowhere")
    want = [(f"{folder}/{name}", [WANT[name]]) for name in in_order(FILES)]
    assert documents_of(str(folder)) == want
    (note,) = [record.getMessage() for record in caplog.records]
    for part in (
        f"{folder}: 7 files skipped",
        "with an image: 1 (such as logo.png)",
        "with an archive: 2 (such as pack.tar)",
        "with UTF-16 text: 1 (such as utf16.txt)",
        "links to nothing: 1 (such as lost)",
        "hidden or unfinished: 2 (such as .hidden)",
    ):
        assert part in note


def test_a_pattern(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of(FILES | OTHERS, tmp_path)
    (folder / "lost").symlink_to("nowhere")
    got = documents_of(f"{folder}/*")  # it names the archives
    names = [Path(name).name for name, texts in got]
    assert [name for name in in_order(FILES | OTHERS) if name in names] == names[:6]
    assert dict(got)[f"{folder}/pack.tar"] == dict(got)[f"{folder}/pack.zip"] == [b"inner"]
    assert "3 files skipped" in caplog.text
    assert "links to nothing: 1 (such as " in caplog.text
    assert [name for name, _ in documents_of(f"{folder}/**/*.py")] == [
        f"{folder}/__init__.py",
        f"{folder}/a.py",
    ]
    with pytest.raises(InputError, match=r"logo\.png"):
        discover([f"{folder}/*.png"], input_format="file")


@pytest.mark.parametrize("pack", [tar, zipped, lambda files: COMPRESS["xz"](tar(files))])
def test_the_members_of_an_archive(pack, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = one_source(write(tmp_path, "code", pack(FILES | OTHERS)), input_format="file")
    assert [part.kind for part in make_parts([source], ways=4)] == ["whole"]
    got = read_parts(source, [WHOLE], block_bytes=1000)
    assert got.texts == [WANT[name] for name in FILES]
    assert got.bytes_read <= source.size
    assert "4 files skipped" in caplog.text
    assert "with an archive: 2 (" in caplog.text


@pytest.mark.parametrize("name", ["logo.png", "utf16.txt"])
def test_a_named_file_without_text(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=name):
        discover([str(write(tmp_path, name, OTHERS[name]))], input_format="file")


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, (1 << 20) - 1, 1 << 20, 3 << 20])
@pytest.mark.parametrize("compression", ["", "zst"])
def test_any_size(size: int, compression: str, tmp_path: Path) -> None:
    text = bytes(np.random.default_rng(size).integers(1, 128, size, np.uint8))
    source = one_source(write(tmp_path, "a", COMPRESS[compression](text)), input_format="file")
    sums: list[str] = []
    (batch,) = read(source, WHOLE, ["text"], tell_sums=sums.append)
    assert batch.documents["text"].text(0) == text
    assert (batch.bytes_read, batch.text_bytes, batch.lines) == (source.size, size, 1)
    assert sums == [tokpack.sources.block_checksums(source, 0, source.size)]


def test_bad_documents(tmp_path: Path) -> None:
    latin = one_source(write(tmp_path, "latin.py", b"\xef\xbb\xbf# caf\xe9\n"), input_format="file")
    assert read_parts(latin, [WHOLE]).reasons == [(0, "invalid UTF-8 at byte 5")]
    long = one_source(write(tmp_path, "long", b"x" * 101), input_format="file")
    got = read_parts(long, [WHOLE], max_document_bytes=100)
    assert got.reasons == [(0, "a document of more than 100 bytes")]
    assert read_parts(long, [WHOLE], max_document_bytes=101).texts == [b"x" * 101]
    packed = tar({"a.txt": b"a", "b.txt": b"\xff", "c.txt": b"x" * 200})
    source = one_source(write(tmp_path, "a.tar", packed), input_format="file")
    assert read_parts(source, [WHOLE], max_document_bytes=100).records == [
        (0, b"a"),
        (1, "invalid UTF-8 at byte 0 (b.txt)"),
        (2, "a document of more than 100 bytes (c.txt)"),
    ]
    (batch,) = read(source, WHOLE, ["text"], columns=["path"], max_document_bytes=1000)
    assert batch.documents["text"].columns["path"].to_pylist() == ["a.txt", "c.txt"]
    (batch,) = read(long, WHOLE, ["text"], columns=["path", "other"])
    columns = batch.documents["text"].columns
    assert {name: one.to_pylist() for name, one in columns.items()} == {"path": [long.name]}
    with pytest.raises(UsageError, match="text, title"):
        list(read(long, WHOLE, ["text", "title"]))


def test_the_same_dataset_for_any_workers(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    files = {f"{i % 7}/{i}.txt": b"word " * int(rng.integers(0, 500)) for i in range(200)}
    folder = folder_of(files, tmp_path / "src")
    tokenizer = byte_tokenizer(tmp_path / "tokenizer.json")

    def encode(inputs: Path | str, name: str, workers: int = 1) -> tokpack.Manifest:
        options = {"tokenizer": tokenizer, "input_format": "file", "workers": workers}
        return tokpack.encode(inputs, tmp_path / name, **options)

    one, two = encode(folder, "one"), encode(folder, "two", 3)
    assert one.bin == two.bin
    empty = sum(not text for text in files.values())
    assert (one.records, one.documents, one.empty) == (200, 200 - empty, empty)
    packed = write(tmp_path, "all.tar", tar({name: files[name] for name in in_order(files)}))
    assert encode(packed, "tar").bin == one.bin
    (folder / "3/bad.txt").write_bytes(b"\xff")
    with pytest.raises(RecordError, match=r"3/bad\.txt, document number 1"):
        encode(folder, "bad")


def test_a_pipe() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"one\n\ntwo\n")
    os.close(write_end)
    path = f"/dev/fd/{read_end}"
    assert [texts for _, texts in documents_of(path)] == [[b"one\n\ntwo\n"]]
    os.close(read_end)


BOOK = b"It was the best of\ntimes, it was the worst.\n\n" * 20


@pytest.mark.parametrize(
    ("text", "is_told"),
    [(BOOK, True), (BOOK.replace(b"\n", b"\r\n"), True), (b"a document\n" * 50, False)],
)
def test_books_are_told_from_lines(
    text: bytes, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of({f"{i}.txt": text for i in range(20)}, tmp_path)
    for compression in ("zst", "gz"):
        write(tmp_path, f"x.txt.{compression}", COMPRESS[compression](text))
    assert {source.format for source in discover([str(folder)])} == {"text"}
    assert ("running text" in caplog.text) == is_told
    if is_told:
        said = "0.txt and 21 other files: each line becomes a document, though they look like"
        assert f"{folder}/{said}" in caplog.text
    caplog.clear()
    discover([str(folder)], input_format="text")
    discover([str(folder)], input_format="file")
    assert not caplog.records
    discover([str(folder / "0.txt")])
    assert ("0.txt: each line becomes a document, though it looks like" in caplog.text) == is_told


def test_pages_and_code_are_told_from_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = b"import os\n\n\ndef a():\n    return 1\n\n\ndef b():\n    return 2\n"
    write(tmp_path, "notes.txt", BOOK)
    folder = folder_of({f"{i}.txt": code for i in range(3)}, tmp_path)
    for given in (tmp_path / "notes.txt", f"{folder}/?.txt"):
        caplog.clear()
        assert {source.format for source in discover([str(given)])} == {"text"}
        assert "input_format='file' makes each file one document" in caplog.text


def test_links_to_nothing_and_empty_files_of_a_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What holds no documents by its name is skipped and counted; else it is an error."""
    folder = folder_of({"a.jsonl": b'{"text": "a"}\n', "lock": b"", "b.jsonl": b""}, tmp_path)
    os.symlink("gone", folder / "note")
    for given in (folder, f"{folder}/*"):
        caplog.clear()
        names = [source.name.rpartition("/")[2] for source in discover([str(given)])]
        assert names == (["a.jsonl", "b.jsonl"] + (["lock"] if given != folder else []))
        assert "links to nothing: 1 (such as " in caplog.text
        assert ("empty: 1 (such as lock)" in caplog.text) == (given == folder)
    os.symlink("gone.jsonl", folder / "c.jsonl")
    for given in (folder, f"{folder}/*"):
        with pytest.raises(InputError, match=r"c\.jsonl: .*gone\.jsonl"):
            discover([str(given)])


def test_what_a_folder_is_read_without_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"a.jsonl": b'{"text": "a"}\n', "README.md": b"#", "b.py": b"b", "c.png": b"\x89PNG\0"}
    discover([str(folder_of(files, tmp_path))])
    for reason in (
        "READMEs and the like: 1 (such as README.md)",
        "with an image: 1",
        "input_format=",
    ):
        assert reason in caplog.text

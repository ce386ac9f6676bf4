"""What an input names, and what its content is."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest
from support.sources_twin import COMPRESS, one_source, read_whole, write

from tokpack.errors import InputError
from tokpack.sources import discover

if TYPE_CHECKING:
    from pathlib import Path

LINES = b'{"text": "a"}\n{"text": "b"}\n'


def paths(inputs: list[str]) -> list[str]:
    return [source.path for source in discover(inputs)]


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize(
    ("name", "raw", "format_"),
    [
        ("data", LINES, "jsonl"),
        ("data.json", LINES, "jsonl"),
        ("data", b" \n\t{}", "jsonl"),
        ("data", b"\xef\xbb\xbf{}", "jsonl"),
        ("data", b'[{"text": "a"}]', "json"),
        ("data.jsonl", b'[\n{"text": "a"}, {"text": "b"}\n]', "json"),
        ("data.jsonl", b'["a"]\n{"text": "b"}\n', "json"),
        ("data", b"Once upon a time", "text"),
        ("data", "\u00d6l".encode(), "text"),
        ("data.txt", LINES, "text"),
        ("data.txt", b"[Chapter 1]\n", "text"),
        ("data.txt", b"\0\1\2", "text"),
        ("data.jsonl", b"Once upon a time", "jsonl"),
        ("data.JSONL", b"no json", "jsonl"),
        ("data.dat", b"0000000000000003abc", "archive"),
        ("data", b"0000000000000003abc", "text"),
        ("empty.jsonl", b"", "jsonl"),
        ("empty.txt", b"", "text"),
        ("blank", b"\n \n", "jsonl"),
    ],
)
def test_content_decides(
    compression: str, name: str, raw: bytes, format_: str, tmp_path: Path
) -> None:
    suffix = f".{compression}" if compression and "." in name else ""
    source = one_source(write(tmp_path, name + suffix, COMPRESS[compression](raw)))
    assert (source.format, source.compression) == (format_, compression)


def test_input_format_overrides_content(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl.gz", COMPRESS["gz"](LINES))
    source = one_source(path, "text")
    assert (source.format, source.compression) == ("text", "gz")
    assert read_whole(path, "text").texts == LINES.splitlines()
    assert read_whole(write(tmp_path, "b", b"[1]\n"), "jsonl").reasons == [
        (0, "the record is a list, not a JSON object")
    ]


def test_folders_are_read_recursively_in_order(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "b/10.jsonl", "a.jsonl.zst", "c/d/e.txt", "c/no-suffix", "B/x.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(COMPRESS["zst" if "zst" in name else ""](LINES))
    for name in (
        *(".hidden.jsonl", "README.md", "README", "a.jsonl.zst.sha256", "SHA256SUMS", "notes.log"),
        *("out.unfinished/plan.json", ".git/x.jsonl", "image", "out.rejects.jsonl"),
        *("out.json", "out.idx", "out.bin"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\0\1" if name in ("image", "out.bin", "out.idx") else LINES)
    (tmp_path / "prose").write_bytes(b"without a suffix, in a folder")
    os.symlink(tmp_path, tmp_path / "c" / "loop")
    names = [os.path.relpath(path, tmp_path) for path in paths([str(tmp_path)])]
    assert names == [
        *("B/x.json", "a.jsonl.zst", "b/10.jsonl", "b/2.jsonl"),
        *("c/d/e.txt", "c/no-suffix"),
    ]


def test_patterns(tmp_path: Path) -> None:
    for name in ("10.jsonl", "2.jsonl", "3.txt", "sub/4.jsonl", "sub/deep/5.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(LINES)
    found = paths([f"{tmp_path}/*.jsonl"])
    assert found == [f"{tmp_path}/10.jsonl", f"{tmp_path}/2.jsonl"]
    found = paths([f"{tmp_path}/**/*.jsonl"])
    assert [os.path.basename(path) for path in found] == [
        "10.jsonl",
        "2.jsonl",
        "4.jsonl",
        "5.jsonl",
    ]
    found = paths([f"{tmp_path}/**"])
    assert len(found) == len(set(found)) == 5
    write(tmp_path, "a[1].jsonl", LINES)
    assert paths([f"{tmp_path}/a[1].jsonl"]) == [f"{tmp_path}/a[1].jsonl"]


def test_comma_lists(tmp_path: Path) -> None:
    one = write(tmp_path, "00.jsonl", LINES)
    two = write(tmp_path, "01 b.jsonl", LINES)
    comma = write(tmp_path, "x, y.jsonl", LINES)
    assert paths([f" {one}, {two}"]) == [one, two]
    assert paths([f"{two},{one} , "]) == [two, one]
    assert paths([comma]) == [comma]
    assert paths([f"{one},{tmp_path}/01*"]) == [one, two]


def test_lists_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a, b.jsonl", "c.jsonl", "@d.jsonl"):
        write(tmp_path, name, LINES)
    write(tmp_path, "list.txt", b"# comment\n\na, b.jsonl\r\n  c*.jsonl\n")
    assert paths(["@list.txt"]) == ["a, b.jsonl", "c.jsonl"]
    assert paths(["@d.jsonl"]) == ["@d.jsonl"]


@pytest.mark.parametrize(
    "name", [" blank .jsonl", "new\nline.jsonl", "tab\t", "bytes\udcff\udcfe.jsonl"]
)
def test_odd_file_names(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, LINES + b"{")
    for found in (discover([path]), discover([str(tmp_path)])):
        (source,) = found
        assert source.path == path
        assert source.name.isprintable()
        source.name.encode()
        json.dumps(source.to_json())
        assert read_whole(source.path).texts == [b"a", b"b"]


def test_order_and_repetition_are_the_users(tmp_path: Path) -> None:
    one, two = write(tmp_path, "1.jsonl", LINES), write(tmp_path, "2.jsonl", LINES)
    assert paths([two, one, two]) == [two, one, two]


def tree(tmp_path: Path) -> Path:
    """c/2024/a.jsonl, and links that lead there and back."""
    (tmp_path / "c" / "2024").mkdir(parents=True)
    write(tmp_path / "c" / "2024", "a.jsonl", LINES)
    write(tmp_path / "c", "b.jsonl", LINES)
    os.symlink("2024", tmp_path / "c" / "1latest")
    for name in ("self", "other"):  # each leads into the other, without end
        os.symlink(tmp_path / "c", tmp_path / "c" / "2024" / name)
    return tmp_path / "c"


@pytest.mark.parametrize("pattern", ["", "/**", "/**/*.jsonl"])
def test_links_to_folders_are_followed_once(
    tmp_path: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    c = tree(tmp_path)
    assert paths([f"{c}{pattern}"]) == [f"{c}/2024/a.jsonl", f"{c}/b.jsonl"]
    assert "1latest links to the folder" in caplog.text
    assert "and so do 2 more" in caplog.text
    caplog.clear()
    os.unlink(c / "1latest")
    os.symlink(tmp_path / "elsewhere", c / "1latest")
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere", "z.jsonl", LINES)
    assert paths([f"{c}{pattern}"])[0] == f"{c}/1latest/z.jsonl"


def test_a_file_of_several_names_is_read_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    c = tree(tmp_path)
    assert paths([f"{c}/*/*.jsonl"]) == [f"{c}/2024/a.jsonl"]
    assert "1latest/a.jsonl is the same file" in caplog.text
    os.link(c / "b.jsonl", c / "z.jsonl")
    os.symlink("b.jsonl", c / "0.jsonl")
    assert paths([str(c)]) == [f"{c}/2024/a.jsonl", f"{c}/b.jsonl"]
    assert paths([str(c / "z.jsonl")]) == [f"{c}/z.jsonl"]


def test_what_is_named_twice_is_read_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    c = tree(tmp_path)
    a, b = f"{c}/2024/a.jsonl", f"{c}/b.jsonl"
    os.unlink(c / "1latest")
    for name in ("self", "other"):
        os.unlink(c / "2024" / name)
    assert paths([a, a]) == [a, a]
    assert paths([str(c), str(c)]) == [a, b, a, b]
    assert paths([f"{c}/*.jsonl,{c}/*.jsonl"]) == [b, b]
    assert not caplog.records
    assert paths([str(c), b]) == [a, b]  # once by hand, and once found
    assert paths([b, str(c)]) == [b, a]
    assert paths([str(c), b, b]) == [a, b, b]
    assert paths([str(c), f"{c}/2024"]) == [a, b]
    assert "is read only once" in caplog.text


def test_patterns_with_several_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["x/2024/a.jsonl", "x/y/2024/b.jsonl", "x/y/2024/z/c.jsonl", "[q]/2024/d.jsonl"]
    for name in [*names, "x/.hidden/2024/e.jsonl", "out.unfinished/2024/f.jsonl"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(LINES)
    monkeypatch.chdir(tmp_path)
    assert paths(["**/2024/*.jsonl"]) == sorted(names[:2] + names[3:])
    assert paths(["**/2024/**/*.jsonl"]) == sorted(names)
    assert paths(["x/**"]) == names[:3]
    assert paths(["*/**/c.jsonl"]) == [names[2]]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", LINES)
    os.chmod(path, 0)
    with pytest.raises(InputError, match="Permission denied"):
        discover([path])


def test_fingerprint_follows_the_content_alone(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 2000
    path = write(tmp_path, "a.txt", raw)
    first = one_source(path).fingerprint()
    os.utime(path, (1, 1))
    assert one_source(path).fingerprint() == first
    assert one_source(write(tmp_path, "b.txt", raw)).fingerprint() == first
    for at in (0, len(raw) // 2, len(raw) - 1):
        changed = raw[:at] + b"?" + raw[at + 1 :]
        assert one_source(write(tmp_path, "c.txt", changed)).fingerprint() != first
    assert one_source(write(tmp_path, "d.txt", raw + raw)).fingerprint() != first
    assert one_source(write(tmp_path, "e.txt", b"")).fingerprint() != ""


@pytest.mark.parametrize(
    ("names", "data", "told"),
    [
        (("a", "b.txt"), b"<html>, b\n", "markup"),
        (("a", "b.txt"), b"a\r\nb\r\n", "which stays"),
        (("a.txt", "b.txt"), b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n', "'jsonl'"),
        (("a.txt", "b.txt"), b'[\n  {\n    "text": "a"\n  }\n]\n', "'jsonl'"),
    ],
)
def test_other_formats_as_plain_text_are_told(
    names, data: bytes, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [str(write(tmp_path, name, data)) for name in names]
    assert {source.format for source in discover(files)} == {"text"}
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{files[0]} and 1 more: read as plain text")
    assert told in record.getMessage()
    caplog.clear()
    discover(files, input_format="text")
    assert not caplog.records


def test_no_lines_of_text_that_is_not_named_so(tmp_path: Path) -> None:
    """A folder leaves it out; by its name, too, it must be said what a document is."""
    folder = tmp_path / "repo"
    folder.mkdir()
    files = [str(write(folder, name, b"a\n\nb\n")) for name in ("a.md", "b.py", "c.html")]
    for given in ([str(folder)], files, [f"{folder}/*"]):
        with pytest.raises(InputError, match="input_format='file'"):
            discover(given)
    for input_format in ("file", "text"):
        assert len(discover(files, input_format=input_format)) == 3
    assert len(discover([str(write(folder, "d.txt", b"a\n")), str(folder)])) == 1


@pytest.mark.parametrize("input_format", ["auto", "file", "text", "jsonl"])
def test_a_pdf_has_no_text_whatever_is_asked_for(tmp_path: Path, input_format: str) -> None:
    path = write(tmp_path, "a.pdf", b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n")
    for given in (path, tmp_path) if input_format in ("auto", "file") else (path,):
        with pytest.raises(InputError, match="PDF"):
            discover([str(given)], input_format=input_format)


def test_a_file_beside_the_one_that_it_was_unpacked_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As ``gunzip -k`` leaves them; each document would be there twice."""
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path, name, LINES)
        write(tmp_path, f"{name}.gz", COMPRESS["gz"](LINES))
    assert len(paths([str(tmp_path)])) == 4
    (record,) = caplog.records
    assert f"{tmp_path}/a.jsonl.gz and 1 more: " in record.getMessage()
    caplog.clear()
    paths([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl.gz")])
    assert not caplog.records

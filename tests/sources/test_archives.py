"""Archives: as lm-dataformat reads them where it does so rightly, and rightly where it does not."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
import zstandard
from support.archives import dat, tar, zipped
from support.sources_twin import COMPRESS, WHOLE, one_source, read_parts, read_whole, write

from tokpack.errors import InputError
from tokpack.sources import make_parts, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXTS = [f"text {i} \u00e9\n" * (i % 50) for i in range(300)]
WANT = [text.encode() for text in TEXTS]
LINES = "".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in TEXTS).encode()
FILES = {f"d/{i}.txt": text for i, text in enumerate(WANT)}


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_of_text_files(compression: str, format_: int, tmp_path: Path) -> None:
    files = {**FILES, "d/" + "long" * 40 + "/name": b"last"}
    if format_ == tarfile.USTAR_FORMAT:
        del files["d/" + "long" * 40 + "/name"]
    packed = COMPRESS[compression](tar(files, format_))
    source = one_source(write(tmp_path, "no-suffix", packed))
    assert (source.format, source.compression) == ("archive", compression)
    assert [part.kind for part in make_parts([source], ways=4)] == ["whole"]
    got = read_parts(source, [WHOLE], block_bytes=5000)
    assert got.records == list(enumerate(files.values()))
    assert got.bytes_read <= source.size


@pytest.mark.parametrize("outer", [tar, zipped])
def test_members_are_read_by_content(outer, tmp_path: Path) -> None:
    files = {
        "a.jsonl.zst": COMPRESS["zst"](LINES),
        "b": COMPRESS["gz"](LINES),
        "c.json": json.dumps([{"text": "array"}, {"text": None}]).encode(),
        "plain": b"one document\nof two lines",
        "d.txt": b"{text}",
        "inner.tar.xz": COMPRESS["xz"](tar({"e.jsonl": b'{"text": "inner"}'})),
        ".hidden": b"no",
        "__MACOSX/._a": b"\0\0",
        "empty.txt": b"",
    }
    got = read_whole(write(tmp_path, "a", outer(files)))
    want = [*WANT, *WANT, b"array", b"one document\nof two lines", b"{text}", b"inner", b""]
    assert got.texts == want
    assert got.reasons == [(601, f"'text' is null (line 2 of {tmp_path}/a/c.json)")]
    assert got.lines == len(want) + 1


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_zip_of_text_files(method: int, tmp_path: Path) -> None:
    source = one_source(write(tmp_path, "a.jsonl", zipped(FILES, method)))
    assert source.format == "archive"
    assert read_parts(source, [WHOLE]).texts == WANT
    (bad,) = read(source, WHOLE, ["text"])
    assert len(bad.documents["text"]) == 300


@pytest.mark.parametrize("frames", [1, 3])
def test_dat(frames: int, tmp_path: Path) -> None:
    raw = dat(WANT)
    size = -(-len(raw) // frames)
    packed = b"".join(COMPRESS["zst"](raw[i : i + size]) for i in range(0, len(raw), size))
    got = read_whole(write(tmp_path, "a.dat.zst", packed), block_bytes=1000)
    assert got.records == list(enumerate(WANT))


def test_bad_records_in_archives(tmp_path: Path) -> None:
    texts = [b"good", b"\xff", b"x" * 101, b"good"]
    reasons = ["invalid UTF-8 at byte 0", "a document of more than 100 bytes"]
    files = {str(i): text for i, text in enumerate(texts)}
    for name, raw in (("a.dat", dat(texts)), ("a.tar", tar(files)), ("a.zip", zipped(files))):
        got = read_whole(write(tmp_path, name, raw), max_document_bytes=100)
        assert got.texts == [b"good", b"good"]
        member = "" if name == "a.dat" else " ({})"
        assert got.reasons == [(i, why + member.format(i)) for i, why in enumerate(reasons, 1)]


@pytest.mark.parametrize("compression", ["", "gz", "zst"])
def test_tar_cut_off_anywhere(compression: str, tmp_path: Path) -> None:
    files = {"a.jsonl": LINES, "b.txt": b"b" * 512, "c.txt": b"c"}
    raw = tar(files)
    end = len(raw.rstrip(b"\0")) // 512 * 512 + 512
    for cut in (600, 1100, end - 1024, end - 600, end - 512, end - 10, end):
        path = write(tmp_path, f"{cut}.tar", COMPRESS[compression](raw[:cut]))
        with pytest.raises(InputError, match=rf"{cut}\.tar"):
            read_whole(path)
    assert len(read_whole(write(tmp_path, "ok.tar", raw[: end + 512])).texts) == 302


def test_nothing_is_extracted(tmp_path: Path) -> None:
    name = "../../escape.txt"
    path = write(tmp_path, "a.tar", tar({name: b"text", "/tmp/absolute": b"more"}))
    before = sorted(os.walk(tmp_path))
    assert read_whole(path).texts == [b"text", b"more"]
    assert sorted(os.walk(tmp_path)) == before


class TestBesideLmDataformat:
    """The library itself as the oracle where it reads rightly, and its faults where it does not."""

    @pytest.fixture
    def library(self):
        return pytest.importorskip("lm_dataformat", reason="needs the dev extra")

    @staticmethod
    def theirs(library, path: str) -> list[bytes]:
        return [text.encode() for text in library.Reader(path).stream_data()]

    @pytest.mark.parametrize("kind", ["Archive", "DatArchive"])
    def test_its_archives_read_alike(self, library, kind: str, tmp_path: Path) -> None:
        archive = getattr(library, kind)(str(tmp_path))
        for text in TEXTS:
            archive.add_data(text)
        archive.commit()
        if kind == "Archive":
            archive.fh.close()
        (path,) = [str(path) for path in tmp_path.iterdir() if path.suffix == ".zst"]
        assert read_whole(path).texts == self.theirs(library, path) == WANT

    @pytest.mark.parametrize(
        ("name", "packed"),
        [
            ("a.zip", zipped(FILES)),
            ("a.tar.gz", COMPRESS["gz"](tar({k: v for k, v in FILES.items() if v}))),
            ("urlsf_subset00-1_data.xz", COMPRESS["xz"](tar(FILES, folder=False))),
        ],
    )
    def test_text_files_read_alike(self, library, name: str, packed: bytes, tmp_path: Path) -> None:
        path = write(tmp_path, name, packed)
        assert read_whole(path).texts == self.theirs(library, path)

    def test_its_faults(self, library, tmp_path: Path) -> None:
        cut = write(tmp_path, "cut.dat.zst", COMPRESS["zst"](dat([*WANT, b"cut here"])[:-4]))
        assert self.theirs(library, cut)[-1] == b"cut "
        with pytest.raises(InputError, match=r"cut\.dat\.zst:"):
            read_whole(cut)

        gz = write(tmp_path, "a.jsonl.gz", COMPRESS["gz"](b'{"text": "a"}\n'))
        assert self.theirs(library, gz) == [b'{"text": "a"}\n']
        assert read_whole(gz).texts == [b"a"]

        nested = write(tmp_path, "a.jsonl.zst.tar", tar({"a.jsonl.zst": COMPRESS["zst"](LINES)}))
        with pytest.raises(NameError):
            self.theirs(library, nested)
        assert read_whole(nested).texts == WANT


def _claiming(kind: bytes, size: int, *, sparse: str = "") -> bytes:
    """A tar whose second header claims ``size`` bytes, or a file with a hole of so many."""
    info = tarfile.TarInfo("huge.txt")
    info.type, info.size = kind, size
    if sparse.startswith("pax"):
        info.type, info.size = tarfile.REGTYPE, 512
        names = {"size": str(size), "map": f"0,1,{size - 1},0", "numblocks": "1"}
        if sparse == "pax 1.0":
            names = {"major": "1", "minor": "0", "name": "huge.txt", "realsize": str(size)}
        info.pax_headers = {f"GNU.sparse.{name}": value for name, value in names.items()}
    header = bytearray(info.tobuf(tarfile.PAX_FORMAT if info.pax_headers else tarfile.GNU_FORMAT))
    if sparse == "old":  # its data: 512 bytes at 0; then its size with the hole
        header[124:135] = b"%011o" % 512
        header[386:408] = b"%011o\0%010o" % (0, 512)
        header[483:495] = b"\x80" + size.to_bytes(11, "big")
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    first = tar({"first.txt": b"first"}, folder=False)[:1024]
    return first + bytes(header) + b"1\n0\n0\n".ljust(512, b"\0") + first + bytes(1024)


@pytest.mark.parametrize("sparse", ["old", "pax 0.0", "pax 0.1", "pax 1.0"])
def test_holes_of_sparse_files_are_not_made(sparse: str, tmp_path: Path) -> None:
    raw = _claiming(tarfile.GNUTYPE_SPARSE, 1 << 40, sparse=sparse)
    if sparse == "pax 0.0":
        raw = raw.replace(b"GNU.sparse.map", b"GNU.sparse.mpa")
    with pytest.raises(InputError, match=r"huge\.txt"):
        read_whole(write(tmp_path, "a.tar", raw))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_headers_are_not_held_in_memory(kind: bytes, tmp_path: Path) -> None:
    """What such a header claims is read into memory by tarfile, before a member has its name."""
    with pytest.raises(InputError, match=r"a\.tar: .*\b8,000,000,000 bytes"):
        read_whole(write(tmp_path, "a.tar", _claiming(kind, 8 * 10**9)))


def test_members_are_not_held_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    compressor = zstandard.ZstdCompressor().compressobj()
    chunk = LINES * 20
    member = b"".join(compressor.compress(chunk) for _ in range(100)) + compressor.flush()
    source = one_source(write(tmp_path, "a.tar", tar({"a.jsonl.zst": member})))
    tracemalloc.start()
    count = sum(batch.records for batch in read(source, WHOLE, ["text"]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 300 * 20 * 100
    assert peak < 32 << 20


def linked_tar() -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, target in (("a.txt", ""), ("d/link.txt", "a.txt"), ("lost", "/etc/passwd")):
            info = tarfile.TarInfo(name)
            if target:
                info.type, info.linkname = tarfile.SYMTYPE, target
                archive.addfile(info)
            else:
                info.size = 4
                archive.addfile(info, io.BytesIO(b"text"))
    return raw.getvalue()


def linked_zip() -> bytes:
    """As git and Info-ZIP write links: files that have the names of others."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("a.txt", b"text")
        for name, target in (("d/link.txt", "a.txt"), ("lost", "/etc/passwd")):
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
    return raw.getvalue()


@pytest.mark.parametrize("made", [linked_tar, linked_zip])
@pytest.mark.parametrize("input_format", ["auto", "file"])
def test_links_are_passed_over_and_counted(
    made: Callable[[], bytes], input_format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_whole(write(tmp_path, "a", made()), input_format).texts == [b"text"]
    assert "links: 2 (such as d/link.txt)" in caplog.text


def test_members_that_are_one_sample_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sample = {"txt": b"text", "json": b'{"text": "caption"}', "cls": b"1"}
    shard = {f"d/{i:05}.{end}": raw for i in range(4) for end, raw in sample.items()}
    assert len(read_whole(write(tmp_path, "a.tar", tar(shard))).texts) == 12
    assert "such as d/00000.txt and d/00000.json" in caplog.text
    assert "WebDataset" in caplog.text
    caplog.clear()
    others = {f"{i}.txt": b"text" for i in range(9)} | {"8.json": b'{"text": "a"}'}
    read_whole(write(tmp_path, "a.tar", tar(others)))
    read_whole(write(tmp_path, "b.tar", tar(shard)), "file")
    assert not caplog.records

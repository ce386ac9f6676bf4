"""Compressed streams: all their odd but right forms are read, and none is cut off unnoticed."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import os
import random
import subprocess
import zlib
from typing import TYPE_CHECKING

import pytest
import zstandard
from support import forked
from support.archives import tar
from support.sources_twin import (
    COMPRESS,
    SKIPPABLE_FRAME,
    WHOLE,
    in_segments,
    one_source,
    read_parts,
    read_whole,
    write,
)

from tokpack.errors import InputError
from tokpack.sources import Part, Source, make_parts, read
from tokpack.sources import compression as compressions
from tokpack.sources.compression import frame_ends

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [random.Random(i).randbytes(60).hex().encode() for i in range(5000)]
RAW = b"".join(b'{"text": "%b"}\n' % text for text in TEXTS)
HALF = len(RAW) // 2  # in the middle of a line


def read_all(path: str, compression: str) -> None:
    """Read without detection, which would refuse some broken files earlier."""
    source = Source(path, path, "jsonl", compression, os.path.getsize(path), 0)
    for _ in read(source, WHOLE, ["text"]):
        pass


@pytest.mark.parametrize("compression", ["zst", "gz", "xz", "bz2"])
def test_cut_off_anywhere(compression: str, tmp_path: Path) -> None:
    packed = COMPRESS[compression](RAW)
    random_cuts = random.Random(5).sample(range(10, len(packed)), 12)
    for cut in [1, 3, 5, len(packed) - 9, len(packed) - 1, *random_cuts]:
        path = write(tmp_path, f"cut{cut}.{compression}", packed[:cut])
        with pytest.raises(InputError, match=rf"/cut{cut}\.{compression}: .*\bcut off\b"):
            read_all(path, compression)


@pytest.mark.parametrize("compression", ["zst", "gz", "xz", "bz2"])
def test_second_member_cut_off(compression: str, tmp_path: Path) -> None:
    one = COMPRESS[compression](RAW)
    path = write(tmp_path, f"a.{compression}", one + one[: len(one) // 2])
    with pytest.raises(InputError, match=r"a\.\w+: .* \d{6}"):
        read_all(path, compression)


@pytest.mark.parametrize("compression", ["zst", "gz", "xz", "bz2"])
def test_corrupt(compression: str, tmp_path: Path) -> None:
    packed = bytearray(COMPRESS[compression](RAW))
    if compression == "zst":
        packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(RAW))
    for at in (len(packed) // 2, len(packed) - 3):
        broken = bytearray(packed)
        broken[at] ^= 0x55
        path = write(tmp_path, f"{at}.{compression}", bytes(broken))
        with pytest.raises(InputError, match=rf"/{at}\.{compression}: "):
            read_all(path, compression)
    path = write(tmp_path, f"tail.{compression}", bytes(packed) + b"garbage")
    with pytest.raises(InputError, match=rf"tail\.{compression}: .*\bcorrupt\b"):
        read_all(path, compression)


def test_zstd_window_of_128_mb(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=27, compression_level=1, enable_ldm=True, write_content_size=False
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert (
        read_whole(write(tmp_path, "a.zst", compressor.compress(RAW) + compressor.flush())).texts
        == TEXTS
    )


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_zstd_frames_are_found(streaming: bool, checksum: bool, tmp_path: Path) -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=checksum)
    packed, ends = b"", []
    for size in (0, 1, 200, 70_000, 300_000):
        for raw in (bytes(size), RAW[:size]):  # the zeros become RLE blocks
            if streaming:
                stream = compressor.compressobj()
                packed += stream.compress(raw) + stream.flush()
            else:
                packed += compressor.compress(raw)
            ends.append(len(packed))
    with open(write(tmp_path, "a.zst", packed), "rb") as file:
        assert list(frame_ends(file.fileno(), 1 << 30)) == ends
        assert list(frame_ends(file.fileno(), 100)) == ends
        assert list(frame_ends(file.fileno(), 0)) == []
    with open(write(tmp_path, "cut.zst", packed[:-1]), "rb") as file:
        assert list(frame_ends(file.fileno(), 1 << 30)) == ends[:-1]


def test_a_frames_part_reads_no_more_than_it_needs(tmp_path: Path) -> None:
    first, second = COMPRESS["zst"](RAW[:HALF]), COMPRESS["zst"](RAW[HALF:])
    # The second half is broken far behind the line that the first half ends in.
    path = write(tmp_path, "a.jsonl.zst", first + second[:-1])
    source = one_source(path)
    got = read_parts(source, [Part(0, "frames", 0, len(first), 0)], block_bytes=1000)
    assert got.texts == TEXTS[: len(got.texts)]
    with pytest.raises(InputError, match=r"a\.jsonl\.zst: .* \d+"):
        read_parts(source, [Part(0, "frames", len(first), source.size, 0)])


def test_segments_notice_a_cut(tmp_path: Path) -> None:
    packed = COMPRESS["zst"](RAW)
    source = one_source(write(tmp_path, "a.jsonl.zst", packed[:-20]))
    with pytest.raises(InputError, match=r"a\.jsonl\.zst: .* \d+"):
        read_parts(source, in_segments(10_000))


@pytest.mark.parametrize("kind", ["whole", "frames", "bytes"])
def test_file_that_vanished(kind: str, tmp_path: Path) -> None:
    source = one_source(write(tmp_path, "a.jsonl", RAW))
    os.unlink(source.path)
    with pytest.raises(InputError, match=r"a\.jsonl"):
        list(read(source, Part(0, kind, 0, 100, 0), ["text"]))


PIPE_SCRIPT = """
import sys
from tokpack.sources import Part, discover, read
source, = discover([sys.argv[1]])
whole = Part(0, "whole", 0, 0, 0)
first = next(iter(read(source, whole, ["text"], block_bytes=50_000)))
count = sum(batch.records for batch in read(source, whole, ["text"]))
print(source.name, source.format, source.compression, source.size, source.fingerprint(), count)
try:
    list(read(source, whole, ["text"]))
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("compression", COMPRESS)
def test_standard_input_can_be_looked_at_first(compression: str) -> None:
    packed = COMPRESS[compression](RAW)
    run = forked.run(["-c", PIPE_SCRIPT, "-"], input=packed, capture_output=True, check=True)
    assert run.stdout.decode() == f"<stdin> jsonl {compression} 0  5000\n"


def test_standard_input_is_read_once_when_it_is_long() -> None:
    run = forked.run(["-c", PIPE_SCRIPT, "-"], input=RAW * 20, capture_output=True, check=True)
    assert run.stdout.decode().splitlines() == [
        "<stdin> jsonl  0  100000",
        "<stdin>: a pipe can be read only once; save it to a file first",
    ]


def test_named_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with forked.Process(["-c", PIPE_SCRIPT, str(fifo)], stdout=subprocess.PIPE) as run:
        fifo.write_bytes(RAW)
        assert run.stdout is not None
        assert run.stdout.read().decode() == f"{fifo} jsonl  0  5000\n"


def mutated(rng: random.Random) -> bytes:
    """A gzip file that is damaged, cut off, followed by something, or whole."""
    texts = [b"", b"a" * 5000, RAW[: rng.randrange(1, 20_000)], rng.randbytes(2000)]
    members = [
        gzip.compress(rng.choice(texts), rng.choice((0, 1, 9))) for _ in range(rng.randint(1, 2))
    ]
    raw = bytearray(b"".join(members))
    how = rng.random()
    if how < 0.5:
        for _ in range(rng.randint(1, 3)):
            raw[rng.randrange(3, len(raw))] ^= 1 << rng.randrange(8)
    elif how < 0.7:
        del raw[rng.randrange(4, len(raw)) :]
    elif how < 0.9:
        raw += rng.choice((bytes(9), b"garbage", b"\x1f", b"\x1f\x8b\x08\xff", rng.randbytes(30)))
    return bytes(raw)


def how_it_ends(path: str) -> str:
    source = Source(path, path, "text", "gz", os.path.getsize(path), 0)
    text = hashlib.sha256()
    try:
        for batch in read(source, WHOLE, ["text"]):
            documents = batch.documents["text"]
            text.update(b"".join(documents.text(n) for n in range(len(documents))))
    except InputError as error:
        return "refused" if "the gz stream is" in str(error) else str(error)
    return text.hexdigest()


def test_isal_takes_and_refuses_what_zlib_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compressions._isal() is zlib:
        pytest.skip("no ISA-L here")
    rng = random.Random(3)
    paths = [write(tmp_path, f"{n}.gz", mutated(rng)) for n in range(400)]
    ends = [how_it_ends(path) for path in paths]
    assert 50 < ends.count("refused") < 350
    monkeypatch.setattr(compressions, "_isal", lambda: zlib)
    assert ends == [how_it_ends(path) for path in paths]


def header(flags: int) -> bytes:
    """The header of a gzip member with the fields that the flags tell of."""
    fields = {4: b"\6\0BC\2\0\1\2", 8: b"name.jsonl\0", 16: b"a comment\0"}
    found = b"\x1f\x8b\x08" + bytes([flags]) + bytes(5) + b"\xff"
    found += b"".join(field for flag, field in fields.items() if flags & flag)
    return found + (zlib.crc32(found) & 0xFFFF).to_bytes(2, "little") * bool(flags & 2)


@pytest.mark.parametrize("size", [7, 11, 23])
def test_header_of_a_member_cut_between_two_reads(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokpack.sources.streams._CHUNK_BYTES", size)
    text = b"".join(TEXTS[:9])
    bare = gzip.compress(text)[10:]
    path = write(tmp_path, "fields.gz", b"".join(header(flags) + bare for flags in range(32)))
    assert how_it_ends(path) == hashlib.sha256(32 * text).hexdigest()


@pytest.mark.parametrize("outer", list(filter(None, COMPRESS)))
@pytest.mark.parametrize("inner", list(filter(None, COMPRESS)))
def test_a_compression_in_another_one(outer: str, inner: str, tmp_path: Path) -> None:
    """As objects of stores with Content-Encoding: gzip are, fetched raw."""
    for name, layers in (("a.jsonl.gz", (inner, outer)), ("b", (inner, outer, inner))):
        raw = RAW
        for layer in layers:
            raw = COMPRESS[layer](raw)
        source = one_source(write(tmp_path, name, raw))
        assert (source.format, source.compression) == ("jsonl", "+".join(reversed(layers)))
        for parts in ([WHOLE], in_segments(10_000)):
            assert read_parts(source, parts).texts == TEXTS
        assert source.is_sound
        cut = write(tmp_path, name, raw[: len(raw) - 20])
        with pytest.raises(InputError):
            read_whole(cut)


def test_members_of_archives_that_are_compressed_twice(tmp_path: Path) -> None:
    twice = COMPRESS["gz"](COMPRESS["zst"](RAW))
    assert read_whole(write(tmp_path, "a.tar", tar({"a.jsonl.gz": twice}))).texts == TEXTS
    inner = COMPRESS["xz"](COMPRESS["gz"](tar({"a.jsonl": RAW})))
    assert read_whole(write(tmp_path, "a.tar.gz.xz", inner)).texts == TEXTS


def test_compressions_without_end_are_refused(tmp_path: Path) -> None:
    raw = RAW
    for _ in range(4):
        raw = COMPRESS["gz"](raw)
    with pytest.raises(InputError, match=r"a\.gz"):
        one_source(write(tmp_path, "a.gz", raw))


def test_frames_of_something_compressed_are_not_cut(tmp_path: Path) -> None:
    inner = COMPRESS["gz"](RAW)
    frames = b"".join(COMPRESS["zst"](inner[i : i + 9000]) for i in range(0, len(inner), 9000))
    source = one_source(write(tmp_path, "a.zst", frames))
    parts = make_parts([source], ways=8, target_bytes=1000, smallest_bytes=1000)
    assert [part.kind for part in parts] == ["stream"]
    assert read_parts(source, parts).texts == TEXTS


@pytest.mark.parametrize("before", [b"", SKIPPABLE_FRAME, COMPRESS["zst"](RAW[:100])])
def test_a_dictionary_that_is_not_there_is_named(before: bytes, tmp_path: Path) -> None:
    lines = RAW.splitlines(keepends=True)
    trained = zstandard.train_dictionary(2000, lines[:2000])
    raw = before + zstandard.ZstdCompressor(dict_data=trained).compress(RAW)
    with pytest.raises(InputError, match=rf"a\.jsonl\.zst: .*\b{trained.dict_id()}\b"):
        read_all(write(tmp_path, "a.jsonl.zst", raw), "zst")
    nameless = zstandard.ZstdCompressionDict(b"".join(lines[:50]))
    raw = zstandard.ZstdCompressor(dict_data=nameless).compress(b"".join(lines[:50]))
    with pytest.raises(InputError, match=r"a\.jsonl\.zst"):
        read_all(write(tmp_path, "a.jsonl.zst", raw), "zst")


def test_text_that_begins_as_bzip2_does(tmp_path: Path) -> None:
    assert read_whole(write(tmp_path, "a.txt", b"BZh1 is a mark\n")).texts == [b"BZh1 is a mark"]
    assert one_source(write(tmp_path, "a.txt.bz2", bz2.compress(b""))).compression == "bz2"

"""However a source is cut, and whatever the sizes: the same records, in order, with their lines."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
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

from tokpack.errors import UsageError
from tokpack.sources import Part, read
from tokpack.sources.compression import compression_of
from tokpack.sources.detect import kind_of

if TYPE_CHECKING:
    from pathlib import Path

BOM = b"\xef\xbb\xbf"
LIMIT = 60

words = st.text('ab \u2028\x0b\r\u00e9\U0001f600\\"', max_size=30)
Record = tuple[bytes, bytes | str | None]  # without its newline; its text, why it is bad, or blank
LONG = f"a line of more than {LIMIT} bytes"


@st.composite
def json_records(draw: st.DrawFn) -> Record:
    kind, text = draw(st.sampled_from("tttttnbdmsx")), draw(words)
    end = draw(st.sampled_from([b"", b"\r"]))
    odd: dict[str, Record] = {
        "t": (json.dumps({"text": text}).encode() + end, text.encode()),
        "n": (b'{"text": null}', "'text' is null"),
        "b": (draw(st.sampled_from([b"", b" ", b"\t\r"])), None),
        "d": (b'{"text": "a", "text": "%d"}' % len(text), str(len(text)).encode()),
        "m": (b'{"other": 1}', "no key 'text'"),
        "s": (b'{"text": "\\ud83d"}', "lone surrogate \\ud83d in 'text'"),
        "x": (json.dumps({"text": "x" * 3 * LIMIT}).encode(), LONG),
    }
    return odd[kind]


def is_text(line: bytes) -> Record:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return line, f"invalid UTF-8 at byte {error.start}"
    return line, line


text_lines = st.binary(max_size=40).map(lambda line: is_text(line.replace(b"\n", b"")))


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes, list[tuple[int, bytes | str]]]:
    """A format, a file of it, and its records: the plain twin of every reader."""
    format_ = draw(st.sampled_from(["jsonl", "text", "json"]))
    lines = draw(st.lists(text_lines if format_ == "text" else json_records(), max_size=25))
    if (
        format_ == "json"
    ):  # an array has no blank elements, and none that a space behind it makes too long
        lines = [(line, what) for line, what in lines if what is not None and len(line) < LIMIT]
        raw = b"[" + draw(st.sampled_from([b",", b" ,\n "])).join(line for line, _ in lines) + b"]"
    else:
        lines = [(line, LONG if len(line) > LIMIT else what) for line, what in lines]
        raw = b"\n".join(line for line, _ in lines)
        if lines and (not lines[-1][0] or draw(st.booleans())):
            raw += b"\n"
    records = [(number, what) for number, (_, what) in enumerate(lines) if what is not None]
    return format_, (BOM if draw(st.booleans()) else b"") + raw, records


# What may stand behind a stream, and holds nothing.
PADDING = {
    "zst": [SKIPPABLE_FRAME, COMPRESS["zst"](b"")],
    "gz": [gzip.compress(b""), bytes(700)],
    "xz": [bytes(8), lzma.compress(b"")],
    "bz2": [bz2.compress(b"")],
}


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    file=files(),
    compression=st.sampled_from(list(COMPRESS)),
    sizes=st.tuples(
        st.sampled_from([16, 17, 61, 200, 1 << 16]), st.sampled_from([1, 5, 64, 333, 1 << 16])
    ),
)
def test_every_split_of_every_stream_gives_the_same(
    data: st.DataObject,
    file: tuple[str, bytes, list[tuple[int, bytes | str]]],
    compression: str,
    sizes: tuple[int, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Also of streams that consist of several, as cat makes them, and of nothing in between."""
    format_, raw, records = file
    options = {"block_bytes": sizes[0], "max_document_bytes": LIMIT}
    bounds = sorted({0, len(raw), *data.draw(st.lists(st.integers(0, len(raw)), max_size=5))})
    packed, ends = b"", [0]
    for begin, end in pairwise(bounds):
        packed += COMPRESS[compression](raw[begin:end])
        packed += data.draw(st.sampled_from([b"", *PADDING.get(compression, [])]))
        ends.append(len(packed))
    # It may begin as something else: drawn bytes are now and then those that tokpack looks for.
    if not packed or (not compression and compression_of(packed)) or kind_of(raw):
        return
    folder = tmp_path_factory.getbasetemp()
    source = one_source(write(folder, f"x.{compression or 'plain'}", packed), format_)
    assert (source.format, source.compression) == (format_, compression)
    splits = [[WHOLE], in_segments(sizes[1])]
    if format_ != "json" and compression in ("", "zst"):
        kind = "frames" if compression else "bytes"
        splits.append([Part(0, kind, begin, end, 0) for begin, end in pairwise(ends)])
    for parts in splits:
        got = read_parts(source, parts, **options)
        assert got.records == records
        assert got.bytes_read <= source.size
        if format_ != "json" and raw:
            assert got.text_bytes == len(raw) - 3 * raw.startswith(BOM)


@pytest.mark.parametrize("length", range(LIMIT - 1, LIMIT + 3))
def test_a_long_line_before_the_last_ones(tmp_path: Path, length: int) -> None:
    """The part that passes over it ends between the lines that were read with its end."""
    long = b'{"text": "' + b"a" * (length - 12) + b'"}\n'
    raw = b'{"text": "b"}\n' + long + b'{"text": "c"}\n' * 3
    source = one_source(write(tmp_path, "a.jsonl", raw), "jsonl")
    wanted = [b"b", *([b"a" * (length - 12)] if length <= LIMIT else []), b"c", b"c", b"c"]
    for cut in range(1, len(raw)):
        parts = [Part(0, "bytes", 0, cut, 0), Part(0, "bytes", cut, len(raw), 0)]
        got = read_parts(source, parts, block_bytes=LIMIT + 1, max_document_bytes=LIMIT)
        assert got.texts == wanted


def test_lines_end_at_newline_alone(tmp_path: Path) -> None:
    text = "a\u2028b\x0bc\x0cd\x85e\rf\x1cg"
    path = write(
        tmp_path, "separators.jsonl", json.dumps({"text": text}, ensure_ascii=False).encode()
    )
    assert read_whole(path).texts == [text.encode()]
    line = '{"text": "a\u2028b\x85e"}\r\n'.encode()
    path = write(tmp_path, "more.jsonl", line + line)
    assert read_whole(path).texts == ["a\u2028b\x85e".encode()] * 2
    path = write(tmp_path, "lines.txt", text.encode() + b"\nnext")
    assert read_whole(path).texts == [text.encode(), b"next"]


def test_long_line_grows_the_buffer_and_a_longer_one_is_bad(tmp_path: Path) -> None:
    fits = json.dumps({"text": "y" * 300_000}).encode()
    line = json.dumps({"text": "x" * 300_000}).encode()
    good = b'{"text": "good"}'
    path = write(tmp_path, "a.jsonl", b"\n".join([good, fits, line + b" ", line, good]))
    options = {"block_bytes": 4096, "max_document_bytes": len(line)}
    assert read_whole(path, **options).records == [
        (0, b"good"),
        (1, b"y" * 300_000),
        (2, f"a line of more than {len(line)} bytes"),
        (3, b"x" * 300_000),
        (4, b"good"),
    ]
    source = one_source(path)
    batches = list(read(source, WHOLE, ["text"], **options))
    (bad,) = [bad for batch in batches for bad in batch.bad]
    assert bad.raw == line[:4096]
    assert sum(batch.text_bytes for batch in batches) == source.size


def test_memory_is_bounded_by_the_block_not_by_a_bad_line(tmp_path: Path) -> None:
    import tracemalloc

    chunk = b" " * (1 << 20)
    compressor = zstandard.ZstdCompressor().compressobj()
    raw = b"".join(compressor.compress(chunk) for _ in range(256)) + compressor.flush()
    path = write(tmp_path, "bomb.jsonl.zst", raw)
    source = one_source(path, "jsonl")
    assert source.size < 1 << 20
    tracemalloc.start()
    got = read_parts(source, [WHOLE], max_document_bytes=1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert got.records == [(0, f"a line of more than {1 << 20} bytes")]
    assert peak < 16 << 20


def test_two_keys_share_their_records(tmp_path: Path) -> None:
    lines = [
        {"text": "t0", "title": "0"},
        {"text": None, "title": "1"},
        {"text": "t2"},
        {"title": "3", "text": "t3"},
    ]
    raw = "\n".join([*map(json.dumps, lines), '{"text":"a","text":"t4","title":"4"}\n']).encode()
    source = one_source(write(tmp_path, "keys.jsonl", raw))
    (batch,) = read(source, WHOLE, ["text", "title"])
    got = {
        key: [(int(line), docs.text(i)) for i, line in enumerate(docs.lines)]
        for key, docs in batch.documents.items()
    }
    assert got["text"] == [(0, b"t0"), (3, b"t3"), (4, b"t4")]
    assert got["title"] == [(0, b"0"), (3, b"3"), (4, b"4")]
    assert [(bad.line, bad.reason) for bad in batch.bad] == [
        (1, "'text' is null"),
        (2, "no key 'title'"),
    ]
    assert batch.records == 5


def test_keys_are_checked(tmp_path: Path) -> None:
    text = one_source(write(tmp_path, "a.txt", b"line\n"))
    with pytest.raises(UsageError, match=r"\bkeys a, b$"):
        list(read(text, WHOLE, ["a", "b"]))
    for keys in ([], ["a", "a"]):
        with pytest.raises(UsageError, match="keys"):
            read(text, WHOLE, keys)

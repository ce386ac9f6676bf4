"""However a source is cut, and whatever the sizes: the same records, in order, with their lines."""

from __future__ import annotations

import json
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

if TYPE_CHECKING:
    from pathlib import Path

BOM = b"\xef\xbb\xbf"
LIMIT = 60

words = st.text('ab \u2028\x0b\r\u00e9\U0001f600\\"', max_size=30)


@st.composite
def json_line(draw: st.DrawFn) -> tuple[bytes, bytes | str | None]:
    """A line without its newline, and its text, or the reason that it is bad, or None: blank."""
    kind = draw(st.sampled_from("tttttnbdmx"))
    text = draw(words)
    if kind == "t":
        return json.dumps({"text": text}).encode() + draw(
            st.sampled_from([b"", b"\r"])
        ), text.encode()
    if kind == "n":
        return b'{"text": null}', "'text' is null"
    if kind == "b":
        return draw(st.sampled_from([b"", b" ", b"\t\r"])), None
    if kind == "d":
        return b'{"text": "a", "text": "%d"}' % len(text), str(len(text)).encode()
    if kind == "m":
        return b'{"other": 1}', "no key 'text'"
    return json.dumps({"text": "x" * 3 * LIMIT}).encode(), f"a line of more than {LIMIT} bytes"


def expected(lines: list[tuple[bytes, bytes | str | None]]) -> list[tuple[int, bytes | str]]:
    found = []
    for number, (line, what) in enumerate(lines):
        if len(line) > LIMIT:
            found.append((number, f"a line of more than {LIMIT} bytes"))
        elif what is not None:
            found.append((number, what))
    return found


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, bytes | str]]]:
    lines = draw(st.lists(json_line(), max_size=25))
    raw = b"\n".join(line for line, _ in lines)
    if lines and (not lines[-1][0] or draw(st.booleans())):
        raw += b"\n"
    return (BOM if draw(st.booleans()) else b"") + raw, expected(lines)


sizes = {
    "block_bytes": st.sampled_from([16, 17, 61, 200, 1 << 16]),
    "segment_bytes": st.sampled_from([1, 5, 64, 333, 1 << 16]),
}


@settings(max_examples=150, deadline=None)
@given(data=st.data(), file=files(), **sizes)
def test_every_split_gives_the_same(
    data: st.DataObject,
    file: tuple[bytes, list[tuple[int, bytes | str]]],
    block_bytes: int,
    segment_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    raw, want = file
    folder = tmp_path_factory.getbasetemp()
    options = {"block_bytes": block_bytes, "max_document_bytes": LIMIT}
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=5))
    bounds = sorted({0, len(raw), *cuts})
    plain = one_source(write(folder, "plain.jsonl", raw), "jsonl")
    splits = [(plain, [WHOLE])]
    splits.append((plain, [Part(0, "bytes", b, e, 0) for b, e in pairwise(bounds)]))

    zstd = b""
    ends = [0]
    for begin, end in pairwise(bounds):
        zstd += SKIPPABLE_FRAME * data.draw(st.integers(0, 1)) + COMPRESS["zst"](raw[begin:end])
        ends.append(len(zstd))
    frames = one_source(write(folder, "frames.jsonl.zst", zstd), "jsonl")
    splits.append((frames, [WHOLE]))
    splits.append((frames, [Part(0, "frames", b, e, 0) for b, e in pairwise(ends)]))

    gz = one_source(write(folder, "file.jsonl.gz", COMPRESS["gz"](raw)), "jsonl")
    splits += [(source, in_segments(segment_bytes)) for source in (plain, frames, gz)]

    for source, parts in splits:
        if raw:
            got = read_parts(source, parts, **options)
            assert got.records == want
            assert got.text_bytes == len(raw) - 3 * raw.startswith(BOM)
            assert got.bytes_read <= source.size
        else:
            assert read_parts(source, [WHOLE], **options).records == []


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


@settings(max_examples=100, deadline=None)
@given(
    lines=st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=20),
    cuts=st.lists(st.integers(0, 800), max_size=4),
    **sizes,
)
def test_plain_text_is_a_document_a_line(
    lines: list[bytes],
    cuts: list[int],
    block_bytes: int,
    segment_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lines = [b"x" + line for line in lines[:1]] + lines[1:]  # no magic number, no BOM
    raw = b"".join(line + b"\n" for line in lines)
    source = one_source(write(tmp_path_factory.getbasetemp(), "lines.txt", raw))
    assert source.format == "text"
    bounds = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    options = {"block_bytes": block_bytes}
    for parts in (
        [WHOLE],
        [Part(0, "bytes", begin, end, 0) for begin, end in pairwise(bounds)],
        in_segments(segment_bytes),
    ):
        got = read_parts(source, parts, **options)
        assert [line for line, _ in got.records] == list(range(len(lines)))
        for line, (_, what) in zip(lines, got.records, strict=True):
            assert what == _text_or_reason(line)


def _text_or_reason(line: bytes) -> bytes | str:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 at byte {error.start}"
    return line


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_array_equals_its_lines(tmp_path: Path, compression: str, indent: int | None) -> None:
    records = [{"text": f'{i}\n[é"]', "meta": [1, {"text": "no"}]} for i in range(3000)]
    records[7]["text"] = None
    records[2900]["text"] = "\ud83d"
    raw = BOM + json.dumps(records, indent=indent).encode()
    path = write(tmp_path, "array.json", COMPRESS[compression](raw))
    source = one_source(path)
    assert (source.format, source.compression) == ("json", compression)
    whole = read_parts(source, [WHOLE])
    want = [r["text"].encode() for i, r in enumerate(records) if i not in (7, 2900)]
    assert whole.texts == want
    assert whole.reasons == [
        (7, "'text' is null"),
        (2900, "lone surrogate \\ud83d in 'text'"),
    ]
    assert read_parts(source, in_segments(5000), block_bytes=999).records == whole.records


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
    with pytest.raises(UsageError, match="one document a line"):
        list(read(text, WHOLE, ["a", "b"]))
    for keys in ([], ["a", "a"]):
        with pytest.raises(UsageError, match="keys"):
            read(text, WHOLE, keys)

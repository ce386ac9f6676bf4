"""Read one part of a source: batches of documents."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from tokpack.errors import UsageError
from tokpack.sources.base import BadRecord, Limits
from tokpack.sources.columns import read_columns, rows_before
from tokpack.sources.json_array import JsonArrayStream
from tokpack.sources.lines import FOREVER, LineReader, Region, count_newlines, stripes
from tokpack.sources.records import JsonLinesParser, Parser, TextParser, only_bad
from tokpack.sources.streams import FileStream, FramesStream, Stream, fill, open_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.sources.base import Batch, Part, Source

STRIPE_BYTES = 4 << 20
LINE_FORMATS = ("jsonl", "json", "text")


def read(
    source: Source,
    part: Part,
    keys: Sequence[str],
    *,
    block_bytes: int = 1 << 20,
    max_document_bytes: int = 1 << 30,
    stripe_bytes: int = STRIPE_BYTES,
) -> Iterator[Batch]:
    """Yield the documents of a part, in order, about ``block_bytes`` at a time.

    A record over ``max_document_bytes`` is a bad one. ``stripe_bytes`` must be the same for all
    parts of a source. InputError where the source cannot be read, is cut off or corrupt: what was
    yielded before is then not the whole part.
    """
    if len(set(keys)) != len(keys) or not keys:
        raise UsageError(f"the keys must be different ones, not {', '.join(keys) or 'none'}")
    limits = Limits(block_bytes, max_document_bytes, stripe_bytes)
    if source.format in LINE_FORMATS:
        return _read_lines(source, part, keys, limits)
    if source.format in ("parquet", "arrow"):
        return read_columns(source, part, keys, limits)
    if source.format == "archive":
        from tokpack.sources.archives import read_archive  # 20 ms of tarfile and zipfile

        return read_archive(source, keys, limits)
    raise UsageError(f"{source.name}: unknown format {source.format!r}")


def line_base(source: Source, part: Part) -> int:
    """The record number, from 0, of a part's first record in its source.

    Reads what is before the part: for error messages only.
    """
    if part.kind == "rows":
        return rows_before(source, part.begin)
    if part.kind not in ("bytes", "frames") or part.begin == 0:
        return 0
    view = memoryview(bytearray(1 << 20))
    lines = 1  # the one that the part begins within is not its own
    # The bytes before a range are plain ones, or whole frames.
    with closing(open_stream(source, part.begin)) as stream:
        while count := fill(stream, view):
            lines += count_newlines(view[:count])
    return lines


def _read_lines(
    source: Source,
    part: Part,
    keys: Sequence[str],
    limits: Limits,
) -> Iterator[Batch]:
    parser: Parser = TextParser(keys) if source.format == "text" else JsonLinesParser(keys)
    stream, regions = _open_part(source, part, limits.stripe_bytes)
    shares = part.end if part.kind == "stripes" else 1  # parts that all read the same bytes
    most = part.end - part.begin if part.kind == "bytes" else source.size or FOREVER
    line = stored = 0
    with closing(stream):
        reader = LineReader(stream, limits.block_bytes, limits.max_document_bytes)
        for block in reader.blocks(regions):
            line += block.skipped
            if block.too_long:
                reason = f"a line of more than {limits.max_document_bytes} bytes"
                parsed = only_bad(keys, BadRecord(line, reason, bytes(block.data)))
            else:
                parsed = parser.parse(block.data, line)
            line += parsed.lines
            stored_before, stored = stored, min(stream.stored // shares, most)
            yield parsed.batch(block.segment, stored - stored_before, block.length)


def _open_part(source: Source, part: Part, stripe_bytes: int) -> tuple[Stream, Iterable[Region]]:
    inside = part.begin > 0
    if part.kind == "bytes":
        size = part.end - part.begin
        # Reads on behind the range: the last line ends there.
        return FileStream(source, part.begin), [Region(0, 0, size, inside)]
    if part.kind == "frames":
        region = Region(0, 0, skips_first_line=inside)
        return FramesStream(source, part.begin, part.end, region), [region]
    stream = open_stream(source)
    if source.format == "json":
        stream = JsonArrayStream(stream, source.name)
    if part.kind == "stripes":
        return stream, stripes(part.begin, part.end, stripe_bytes)
    return stream, [Region()]

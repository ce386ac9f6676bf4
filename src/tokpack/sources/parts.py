"""Cut sources into parts, so that all workers finish early and at about the same time."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING

from tokpack.errors import InputError, UsageError
from tokpack.input_formats import FORMATS
from tokpack.sources.archives import read_archive, read_file
from tokpack.sources.base import PATH, BadRecord, Limits, Part
from tokpack.sources.columns import groups_of, read_columns
from tokpack.sources.compression import COMPRESSIONS, frame_ends
from tokpack.sources.delimited import read_csv, read_csv_rows
from tokpack.sources.find import map_concurrently
from tokpack.sources.json_values import JsonValuesStream
from tokpack.sources.records import LineReader, count_newlines, only_bad
from tokpack.sources.rows import TEXT, TextParser, WholeRecords, json_parser, with_text_rows
from tokpack.sources.streams import (
    FOREVER,
    BoundedStream,
    FileStream,
    FramesStream,
    Stream,
    fill,
    open_stream,
)
from tokpack.storage.disk import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from tokpack.sources.base import DocumentBatch, Source
    from tokpack.sources.records import LineBlock
    from tokpack.sources.rows import Columns


LINE_FORMATS = tuple(name for name, one in FORMATS.items() if one.is_of_lines)
BLOCK_BYTES = 1 << 20


def read(
    source: Source,
    part: Part,
    keys: Sequence[str],
    *,
    columns: Columns = (),
    block_bytes: int = BLOCK_BYTES,
    max_document_bytes: int = 1 << 30,
    tell_sums: Callable[[str], None] | None = None,
) -> Generator[DocumentBatch]:
    """Yield the documents of a part, in order, about ``block_bytes`` at a time.

    ``columns`` are other keys or table columns whose values documents get, if they exist; plain
    text has none. With ``WholeRecords`` batches have rows instead of documents, which are made from
    them later.

    ``tell_sums`` is called at the end with the checksums as of ``block_checksums``: of the whole
    source, or of a byte range up to the end of its last line. It is not called if that would need a
    second pass.

    A part of several files is read file by file. A record over ``max_document_bytes`` is a bad one.
    InputError if the source cannot be read, is cut off or damaged; then the batches so far are not
    the whole part. If you do not read to the end, close it (``contextlib.closing``), because it
    keeps the file open.
    """
    if len(set(keys)) != len(keys) or not keys:
        raise UsageError(f"the keys must differ, not {', '.join(keys) or 'none'}")
    limits = Limits(block_bytes, max_document_bytes)
    if source.format in LINE_FORMATS:
        return _read_lines(source, part, keys, limits, tell_sums=tell_sums, columns=columns)
    if source.format in ("parquet", "arrow", "table"):
        return read_columns(source, part, keys, limits, columns)
    if source.format in ("csv", "tsv"):
        return (
            read_csv_rows(source, limits, columns)
            if isinstance(columns, WholeRecords)
            else read_csv(source, keys, limits, columns)
        )
    if source.format == "file":
        if isinstance(columns, WholeRecords):
            keys = (TEXT,)
        beside = (PATH,) if isinstance(columns, WholeRecords) else columns
        batches = read_file(source, keys, limits, tell_sums, beside)
        return (with_text_rows(batch, columns) for batch in batches)
    if source.format in ("archive", "wet"):
        return read_archive(source, keys, limits, columns)
    raise UsageError(f"{source.name}: unknown format {source.format!r}")


def line_base(source: Source, part: Part) -> int:
    """The record number, counted from 0, of a part's first record in its source.

    It reads everything before the part, so use it only for error messages.
    """
    if part.kind == "rows":
        return sum(rows for rows, _ in groups_of(source)[: part.begin])
    if part.kind not in ("bytes", "frames") or part.begin == 0:
        return 0
    view = memoryview(bytearray(1 << 20))
    lines = 1  # the line that continues into the part belongs to the part before
    # A range begins in plain bytes or at a frame, so the bytes before it can be read alone.
    with closing(open_stream(source, part.begin)) as stream:
        while count := fill(stream, view):
            lines += count_newlines(view[:count])
    return lines


def parse(
    source: Source,
    keys: Sequence[str],
    blocks: Iterable[LineBlock],
    max_document_bytes: int,
    columns: Columns = (),
) -> Iterator[DocumentBatch]:
    """The documents of blocks of lines from any reader; lines count from the first."""
    parser = (TextParser if source.format == "text" else json_parser)(keys, columns)
    line = 0
    for block in blocks:
        if block.too_long:
            reason = f"a line of more than {max_document_bytes} bytes"
            parsed = only_bad(keys, BadRecord(line, reason, bytes(block.data)))
        else:
            parsed = parser.parse(block.data, line)
        line += parsed.lines
        parsed.bytes_read, parsed.text_bytes = block.stored, block.length
        yield parsed


class LineStream:
    """A source of lines that can be read only from its beginning, in segments.

    A segment is some blocks with ``segment_bytes`` or a little more in all. Segments depend on the
    content alone, so they are the same for every reader.
    """

    def __init__(
        self,
        source: Source,
        segment_bytes: int,
        max_document_bytes: int,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._source = source
        self._segment_bytes = segment_bytes
        self._file, self._stream = _open_whole(source, sums=not source.is_pipe)
        reader = LineReader(self._stream, block_bytes, max_document_bytes)
        self._blocks = _with_stored(
            reader.blocks(BoundedStream()), self._stream, source.size or FOREVER
        )
        self._next: LineBlock | None = None

    def __iter__(self) -> Iterator[Iterator[LineBlock]]:
        """The segments, at least one; each is its blocks, which must be read before the next
        segment.
        """
        self._next = next(self._blocks, None)
        yield self._segment()
        while self._next is not None:
            yield self._segment()

    def _segment(self) -> Iterator[LineBlock]:
        size = 0
        while self._next is not None and size < self._segment_bytes:
            size += self._next.length
            yield self._next
            self._next = next(self._blocks, None)

    def block_checksums(self) -> str | None:
        """The checksums of the file's blocks, or None if not all of it was read."""
        return self._file.block_checksums()

    def close(self) -> None:
        self._stream.close()


def _read_lines(
    source: Source,
    part: Part,
    keys: Sequence[str],
    limits: Limits,
    *,
    tell_sums: Callable[[str], None] | None,
    columns: Columns,
) -> Generator[DocumentBatch]:
    file, stream, region = _open_part(source, part, sums=tell_sums is not None)
    block_bytes = limits.block_bytes
    if part.kind == "whole" and source.size and not source.compression:
        # Do not allocate a large buffer for each of many small files.
        block_bytes = min(block_bytes, source.size + 1)
    with closing(stream):
        reader = LineReader(stream, block_bytes, limits.max_document_bytes)
        blocks: Iterable[LineBlock] = reader.blocks(region)
        # For plain bytes stored bytes are the length of a block. So the part that owns a long line
        # counts all of it, also beyond its range.
        if part.kind != "bytes":
            blocks = _with_stored(blocks, stream, source.size or FOREVER)
        yield from parse(source, keys, blocks, limits.max_document_bytes, columns)
        if tell_sums is not None and file is not None:
            last = part.begin + reader.position - 1
            ranged = part.kind == "bytes"
            sums = file.block_checksums_through(last) if ranged else file.block_checksums()
            if sums is not None:
                tell_sums(sums)


def _with_stored(blocks: Iterable[LineBlock], stream: Stream, most: int) -> Iterator[LineBlock]:
    """The blocks, each with the stored bytes that were read for it, ``most`` in all."""
    stored = 0
    for block in blocks:
        before, stored = stored, min(stream.stored, most)
        block.stored = stored - before
        yield block


def _open_part(
    source: Source, part: Part, *, sums: bool
) -> tuple[FileStream | None, Stream, BoundedStream]:
    """The file that takes ``sums``, or None; the stream of a part, and the region of that which it
    owns.
    """
    inside = part.begin > 0
    if part.kind == "bytes":
        size = part.end - part.begin
        # The stream continues beyond the range, because the last line may end there.
        file = FileStream(source, part.begin, until=part.end, sums=sums)
        return file, file, BoundedStream(size, inside)
    if part.kind == "frames":
        region = BoundedStream(skips_first_line=inside)
        return None, FramesStream(source, part.begin, part.end, region), region
    return *_open_whole(source, sums=sums), BoundedStream()


def _open_whole(source: Source, *, sums: bool) -> tuple[FileStream, Stream]:
    """A source of lines from its beginning: the file, and the stream of lines in it."""
    file = FileStream(source, sums=sums)
    stream = open_stream(source, file=file)
    if source.format == "json":
        return file, JsonValuesStream(stream, source.name, source.json_path)
    return file, stream


_SMALL_PART = 4 << 20  # smaller ranges of a file do not get their own part
_SMALL_GROUP = 256 << 10  # small files share a part up to this size
_FILE_COST = 16 << 10  # opening a file takes as long as this many bytes of text
_PARTS_A_WORKER = 8  # enough for workers to end at about the same time
_SECOND_FRAME_WITHIN = 256 << 20
_LARGE_STREAM = 1 << 30  # streams with more text have larger, so fewer, segments
_LARGE_SEGMENT = 4  # how many times as large


_Range = tuple[str, int, int, int]  # kind, begin, end, weight of a part


def make_parts(
    sources: Sequence[Source],
    *,
    ways: int,
    target_bytes: int = 64 << 20,
    smallest_bytes: int = _SMALL_PART,
) -> list[Part]:
    """Cut sources into parts of about ``target_bytes`` of text, for ``ways`` workers.

    Parts are in source order. Sources that can be read from the middle (plain lines, zstd frames,
    row groups) are cut there. Any other stream of lines is one part, whose segments can go to other
    workers while it is read. Consecutive small files share a part. Documents do not depend on the
    cuts. Parts of a file have at least ``smallest_bytes``, if possible.
    """
    if ways < 1:
        raise UsageError(f"ways is the number of workers, not {ways}")
    texts = [source.size * COMPRESSIONS[source.compression].expansion for source in sources]
    fair = int(sum(texts) / (ways * _PARTS_A_WORKER))
    size = max(min(target_bytes, fair), smallest_bytes, 1)
    cut = map_concurrently(
        lambda source: _ranges(source, size, fair, ways, smallest_bytes), sources
    )
    return list(_grouped_files(cut, min(size, max(fair, _SMALL_GROUP))))


def _grouped_files(cut: Iterable[Sequence[_Range]], size: int) -> Iterator[Part]:
    """The parts of all sources; whole sources that follow each other share one, up to a weight of
    ``size``.
    """
    begin = weight = index = 0  # the open group has sources [begin, index)
    for index, ranges in enumerate(cut):
        kind, _, _, share = ranges[0]
        whole = kind == "whole"
        if begin < index and (not whole or weight + share / 2 > size):
            yield _group(begin, index, weight)
            begin, weight = index, 0
        if whole:
            weight += share + _FILE_COST
            continue
        for kind, first, last, share in ranges:
            yield Part(index, kind, first, last, share)
        begin = index + 1
    if weight:
        yield _group(begin, index + 1, weight)


def _group(begin: int, end: int, weight: int) -> Part:
    if end - begin == 1:
        return Part(begin, "whole", 0, 0, weight)
    return Part(begin, "files", begin, end, weight)


def _ranges(source: Source, size: int, fair: int, ways: int, segment: int) -> Sequence[_Range]:
    """The ranges of a source, if it can be read from its middle; else one range, the whole.

    Frames are looked for only if a file has more than ``fair`` bytes of text, and so is worth it.
    ``segment`` is the least size of a segment of a stream.
    """
    compression = COMPRESSIONS[source.compression]
    text = source.size * compression.expansion
    ranges: Sequence[_Range] = ()
    if source.format in ("parquet", "arrow", "table") and not source.is_pipe:
        ranges = list(_grouped("rows", [share for _, share in groups_of(source)], size))
    elif source.format in ("jsonl", "text") and text >= 2 * size and not source.is_pipe:
        if source.compression == "":
            ranges = list(_byte_ranges(source.size, size))
        elif source.compression == "zst" and text > fair and not source.is_remote:
            # Finding frames reads headers all over the file. On a store that costs as much as
            # reading everything, so a remote file is one stream.
            ranges = _frame_ranges(source, size, ways)
    if ranges:
        return ranges
    weight = int(text * (1 + compression.decoding))
    segment *= _LARGE_SEGMENT if text >= _LARGE_STREAM else 1
    if source.format in (*LINE_FORMATS, "documents") and (text > segment or source.is_pipe):
        return [("stream", 0, segment, weight)]
    return [("whole", 0, 0, weight)]


def _byte_ranges(total: int, size: int) -> Iterable[_Range]:
    count = max(1, round(total / size))
    block = blocks.BLOCK_BYTES
    # Cut at block bounds, so that reading a part gives its block checksums without another pass.
    step = block if size >= 2 * block else 1
    bounds = [total * i // count // step * step for i in range(count)] + [total]
    for begin, end in pairwise(bounds):
        yield "bytes", begin, end, int((end - begin) * (1 + COMPRESSIONS[""].decoding))


def _frame_ranges(source: Source, size: int, ways: int) -> Sequence[_Range]:
    """Groups of frames, or none if one frame is most of the file: then a stream is better."""
    try:
        with open(source.path, "rb") as file:
            ends = list(frame_ends(file.fileno(), _SECOND_FRAME_WITHIN))
    except OSError as error:
        raise InputError(f"{source.name}: {error.strerror}") from error
    if not ends or ends[-1] != source.size:
        return ()
    scale = COMPRESSIONS["zst"].expansion * (1 + COMPRESSIONS["zst"].decoding)
    offsets = [0, *ends]
    weights = [int((end - begin) * scale) for begin, end in pairwise(offsets)]
    groups = list(_grouped("frames", weights, int(size * (1 + COMPRESSIONS["zst"].decoding))))
    if len(groups) < 2 or max(weights) > 2 * sum(weights) / ways:
        return ()
    return [(k, offsets[b], offsets[e], w) for k, b, e, w in groups]


def _grouped(kind: str, weights: Sequence[int], size: int) -> Iterable[_Range]:
    """Groups of neighbours, each with a weight of about ``size``."""
    begin = weight = 0
    for index, share in enumerate(weights):
        if weight and weight + share / 2 > size:
            yield kind, begin, index, weight
            begin, weight = index, 0
        weight += share
    if begin < len(weights):
        yield kind, begin, len(weights), weight

"""Cut sources into parts, so that the workers finish together, and soon."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tokpack.errors import InputError, UsageError
from tokpack.files import blocks
from tokpack.sources.base import Part
from tokpack.sources.columns import row_weights
from tokpack.sources.compression import COMPRESSIONS
from tokpack.sources.looks import map_concurrently
from tokpack.sources.read import LINE_FORMATS
from tokpack.sources.zstd_frames import frame_ends

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.sources.base import Source

_SMALL_PART = 4 << 20  # below this a range of a file is not worth its own part
_SMALL_GROUP = 256 << 10  # below this small files share a part;
_FILE_COST = 16 << 10  # bytes of text that take as long as opening a file, added to each
_PARTS_A_WORKER = 8  # enough for the last ones to end together
_SECOND_FRAME_WITHIN = 256 << 20
_LARGE_STREAM = 1 << 30  # of text: its segments are larger, so that there are not too many
_LARGE_SEGMENT = 4  # times a small one


_Range = tuple[str, int, int, int]  # kind, begin, end, weight of a part


def make_parts(
    sources: Sequence[Source],
    *,
    ways: int,
    target_bytes: int = 64 << 20,
    smallest_bytes: int = _SMALL_PART,
) -> list[Part]:
    """Cut sources into parts of about ``target_bytes`` of text, for ``ways`` workers.

    The parts are in the order of the sources. What can be read from its middle (plain lines, zstd
    frames, row groups) is cut there. Any other stream of lines is one part, whose segments can be
    shared out while it is read. Small files that follow each other share a part. What the parts
    give does not depend on how sources were cut. No part of a file has less than ``smallest_bytes``
    without need.
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
    """The parts of all sources; neighbours that are whole make one, up to a weight of ``size``."""
    begin = weight = index = 0  # of the group that is open: sources [begin, index)
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
    """Cut a source where it can be read from its middle, else leave it whole.

    Frames are looked for only in a file of more than ``fair`` bytes of text, for which it matters.
    ``segment`` is the least size of a segment of a stream.
    """
    compression = COMPRESSIONS[source.compression]
    text = source.size * compression.expansion
    ranges: Sequence[_Range] = ()
    if source.format in ("parquet", "arrow", "table") and not source.is_pipe:
        ranges = list(_grouped("rows", row_weights(source), size))
    elif source.format in ("jsonl", "text") and text >= 2 * size and not source.is_pipe:
        if source.compression == "":
            ranges = list(_byte_ranges(source.size, size))
        elif source.compression == "zst" and text > fair and not source.is_remote:
            # Finding frames reads headers all over: on a store that costs as much as the file.
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
    step = block if size >= 2 * block else 1  # of whole blocks reading gives the sums
    bounds = [total * i // count // step * step for i in range(count)] + [total]
    for begin, end in pairwise(bounds):
        yield "bytes", begin, end, int((end - begin) * (1 + COMPRESSIONS[""].decoding))


def _frame_ranges(source: Source, size: int, ways: int) -> Sequence[_Range]:
    """Groups of frames; none where one frame is most of the file."""
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
    """Runs of neighbours, each of a weight of about ``size``."""
    begin = weight = 0
    for index, share in enumerate(weights):
        if weight and weight + share / 2 > size:
            yield kind, begin, index, weight
            begin, weight = index, 0
        weight += share
    if begin < len(weights):
        yield kind, begin, len(weights), weight

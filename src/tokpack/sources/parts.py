"""Cut sources into parts, so that the workers finish together, and soon."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tokpack.errors import InputError, UsageError
from tokpack.sources.base import Part
from tokpack.sources.columns import row_weights
from tokpack.sources.compression import COMPRESSIONS
from tokpack.sources.read import LINE_FORMATS
from tokpack.sources.zstd_frames import frame_ends

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.sources.base import Source

_SMALL_PART = 4 << 20  # below this a part is not worth its files
_PARTS_A_WORKER = 8  # enough for the last ones to end together
_SECOND_FRAME_WITHIN = 256 << 20
_WORTHWHILE = 0.95  # of the time without the stripes


@dataclass(frozen=True)
class _Ranges:
    """One source as parts: (kind, begin, end, weight) of each."""

    parts: tuple[tuple[str, int, int, int], ...]

    @property
    def weights(self) -> list[int]:
        return [weight for *_, weight in self.parts]


def make_parts(
    sources: Sequence[Source],
    *,
    ways: int,
    target_bytes: int = 64 << 20,
    smallest_bytes: int = _SMALL_PART,
) -> list[Part]:
    """Cut sources into parts of about ``target_bytes`` of text, for ``ways`` workers.

    The parts are in the order of the sources. What can be read from its middle (plain lines, zstd
    frames, row groups) is cut there. Any other stream is cut in stripes, for which every worker
    decompresses all of it, if that makes the whole job end sooner. What the parts give does not
    depend on how sources were cut. No part has less than ``smallest_bytes`` without need.
    """
    if ways < 1:
        raise UsageError(f"ways is the number of workers, not {ways}")
    texts = [source.size * COMPRESSIONS[source.compression].expansion for source in sources]
    size = max(min(target_bytes, int(sum(texts) / (ways * _PARTS_A_WORKER))), smallest_bytes, 1)
    fair = int(sum(texts) / (ways * _PARTS_A_WORKER))
    cut = [_ranges(source, size, fair, ways) for source in sources]
    cut = _with_stripes(sources, cut, ways, smallest_bytes)
    return [
        Part(index, kind, begin, end, weight)
        for index, ranges in enumerate(cut)
        for kind, begin, end, weight in ranges.parts
    ]


def _ranges(source: Source, size: int, fair: int, ways: int) -> _Ranges:
    """Cut a source where it can be read from its middle, else leave it whole.

    Frames are looked for only in a file of more than ``fair`` bytes of text, for which it matters.
    """
    text = source.size * COMPRESSIONS[source.compression].expansion
    ranges = None
    if source.is_pipe:
        pass
    elif source.format in ("parquet", "arrow"):
        ranges = _Ranges(tuple(_grouped("rows", row_weights(source), size)))
    elif source.format in ("jsonl", "text") and text >= 2 * size:
        if source.compression == "":
            ranges = _Ranges(tuple(_byte_ranges(source.size, size)))
        elif source.compression == "zst" and text > fair:
            ranges = _frame_ranges(source, size, ways)
    if ranges is None or not ranges.parts:
        return _Ranges((("whole", 0, 0, _whole_weight(source)),))
    return ranges


def _whole_weight(source: Source) -> int:
    text = source.size * COMPRESSIONS[source.compression].expansion
    return int(text * (1 + COMPRESSIONS[source.compression].decoding))


def _byte_ranges(total: int, size: int) -> Iterable[tuple[str, int, int, int]]:
    count = max(1, round(total / size))
    bounds = [total * i // count for i in range(count + 1)]
    for begin, end in pairwise(bounds):
        yield "bytes", begin, end, int((end - begin) * (1 + COMPRESSIONS[""].decoding))


def _frame_ranges(source: Source, size: int, ways: int) -> _Ranges | None:
    """Groups of frames; None where one frame is most of the file."""
    try:
        with open(source.path, "rb") as file:
            ends = list(frame_ends(file.fileno(), _SECOND_FRAME_WITHIN))
    except OSError as error:
        raise InputError(f"{source.name}: {error.strerror}") from error
    if not ends or ends[-1] != source.size:
        return None
    scale = COMPRESSIONS["zst"].expansion * (1 + COMPRESSIONS["zst"].decoding)
    offsets = [0, *ends]
    weights = [int((end - begin) * scale) for begin, end in pairwise(offsets)]
    groups = list(_grouped("frames", weights, int(size * (1 + COMPRESSIONS["zst"].decoding))))
    if len(groups) < 2 or max(weights) > 2 * sum(weights) / ways:
        return None
    return _Ranges(tuple((k, offsets[b], offsets[e], w) for k, b, e, w in groups))


def _grouped(kind: str, weights: Sequence[int], size: int) -> Iterable[tuple[str, int, int, int]]:
    """Runs of neighbours, each of about ``size``."""
    begin = weight = 0
    for index, own in enumerate(weights):
        if weight and weight + own / 2 > size:
            yield kind, begin, index, weight
            begin, weight = index, 0
        weight += own
    if begin < len(weights):
        yield kind, begin, len(weights), weight


def _with_stripes(
    sources: Sequence[Source], cut: list[_Ranges], ways: int, smallest_bytes: int
) -> list[_Ranges]:
    """Stripe the heaviest whole streams, as many as make all workers end soonest."""
    share = sum(sum(ranges.weights) for ranges in cut) / ways
    candidates = [
        index
        for index, source in enumerate(sources)
        if _can_be_striped(source)
        and source.size * COMPRESSIONS[source.compression].expansion >= 2 * smallest_bytes
        and cut[index].parts[0][0] == "whole"
        and cut[index].weights[0] > share / 4
    ]
    candidates.sort(key=lambda index: cut[index].weights[0], reverse=True)
    counts = [1 << power for power in range(1, ways.bit_length()) if 1 << power < ways] + [ways]
    best, best_end = cut, _end(cut, ways)
    tried = list(cut)
    for index in candidates if ways > 1 else ():
        choices = []
        for count in counts:
            tried[index] = _striped(sources[index], count)
            choices.append((_end(tried, ways), count))
        end, count = min(choices)
        tried[index] = _striped(sources[index], count)
        if end < _WORTHWHILE * best_end:
            best, best_end = list(tried), end
    return best


def _can_be_striped(source: Source) -> bool:
    """Whether it is a stream of lines that cannot be read from its middle."""
    if source.is_pipe:
        return False
    return source.format == "json" or (source.format in LINE_FORMATS and source.compression != "")


def _striped(source: Source, count: int) -> _Ranges:
    text = source.size * COMPRESSIONS[source.compression].expansion
    weight = int(text * (COMPRESSIONS[source.compression].decoding + 1 / count))
    return _Ranges(tuple(("stripes", part, count, weight) for part in range(count)))


def _end(cut: Iterable[_Ranges], ways: int) -> float:
    """When the last of ``ways`` workers ends if the heaviest parts go first.

    Parts that are small against a worker's share fill the gaps.
    """
    weights = [weight for ranges in cut for weight in ranges.weights]
    share = sum(weights) / ways
    loads = [0] * ways
    for weight in sorted((w for w in weights if w > share / 20), reverse=True):
        heapq.heapreplace(loads, loads[0] + weight)
    return max(*loads, share)

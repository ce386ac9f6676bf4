"""One pass over all tokens of a dataset, in blocks, on several threads."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.indexed.virtual import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokpack.report.dataset import Opened

_BLOCK = 1 << 18  # tokens counted at a time: their 64-bit copies stay in the cache
_CHUNK_TOKENS = 1 << 24
_CHUNK_DOCUMENTS = 1 << 16
_MOST_IDS = 1 << 22  # ids counted one by one; no tokenizer has more
EXAMPLES = 20


@dataclass
class Scan:
    """What one pass finds.

    counts       int64 [ids]  how often each id occurs
    hashes       uint64 [documents]  XXH3-64 of the bytes of each document's tokens
    outside      tokens whose id is negative or too large to be one
    inner_eods   EOD tokens that do not end their document
    inner        the first documents with such, and the position of the first in each
    without_eod  documents with tokens that do not end with EOD
    """

    counts: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    outside: int = 0
    inner_eods: int = 0
    inner: list[tuple[int, int]] = field(default_factory=list)
    without_eod: int = 0


def scan(
    opened: Opened,
    *,
    vocab_size: int | None,
    eod: int | None,
    threads: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Scan:
    """Read every token once, about a nanosecond or two each on a core.

    Memory is 16 bytes a document (its length and its hash) and a count for each id, whatever the
    length of the documents. ``progress`` is told the tokens read so far.
    """
    lengths = opened.lengths
    ends = np.cumsum(lengths)
    size = min(vocab_size or 0, _MOST_IDS)
    result = Scan(np.zeros(size, np.int64), np.empty(len(lengths), np.uint64))
    workers = threads or min(8, len(os.sched_getaffinity(0)))
    waiting: deque[Any] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for documents, tokens in _chunks(opened, ends):
            waiting.append(pool.submit(_chunk, documents, tokens, ends, eod, result.hashes))
            if len(waiting) > 2 * workers:
                _take(result, waiting.popleft().result(), progress)
        while waiting:
            _take(result, waiting.popleft().result(), progress)
    return result


def _chunks(
    opened: Opened, ends: npt.NDArray[np.int64]
) -> Iterator[tuple[range, npt.NDArray[Any]]]:
    """Runs of whole documents with about _CHUNK_TOKENS tokens, and these."""
    begin = 0
    for part in parts_of(opened.dataset):
        first, stop = _before(ends, begin), begin + len(part.doc_idx) - 1
        while begin < stop:
            before = _before(ends, begin)
            end = int(np.searchsorted(ends, before + _CHUNK_TOKENS)) + 1
            end = min(end, begin + _CHUNK_DOCUMENTS, stop)
            yield range(begin, end), part.tokens[before - first : int(ends[end - 1]) - first]
            begin = end


def _before(ends: npt.NDArray[np.int64], document: int) -> int:
    return int(ends[document - 1]) if document else 0


@dataclass
class _Part:
    end: int
    counts: npt.NDArray[np.int64]
    outside: int
    inner_eods: int
    inner: list[tuple[int, int]]
    without_eod: int


def _take(result: Scan, part: _Part, progress: Callable[[int], None] | None) -> None:
    if len(part.counts) > len(result.counts):
        part.counts[: len(result.counts)] += result.counts
        result.counts = part.counts
    else:
        result.counts[: len(part.counts)] += part.counts
    result.outside += part.outside
    result.inner_eods += part.inner_eods
    result.inner = [*result.inner, *part.inner][:EXAMPLES]
    result.without_eod += part.without_eod
    if progress:
        progress(part.end)


def _chunk(
    documents: range,
    tokens: npt.NDArray[Any],
    ends: npt.NDArray[np.int64],
    eod: int | None,
    hashes: npt.NDArray[np.uint64],
) -> _Part:
    begin, end = documents.start, documents.stop
    first = _before(ends, begin)
    stops = ends[begin:end] - first
    starts = _starts(stops)
    view = tokens.view(np.uint8).data
    width = tokens.itemsize
    digest = xxhash.xxh3_64_intdigest
    spans = zip((starts * width).tolist(), (stops * width).tolist(), strict=True)
    hashes[begin:end] = np.fromiter((digest(view[a:b]) for a, b in spans), np.uint64, len(stops))
    counts, outside = _count(tokens)
    part = _Part(first + len(tokens), counts, outside, 0, [], 0)
    if eod is not None:
        _eods(part, tokens, stops, begin, eod)
    return part


def _starts(stops: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), stops[:-1]])


def _count(tokens: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int]:
    """How often each id occurs, as long as the largest needs it, and how many are no ids."""
    counts, outside = np.zeros(0, np.int64), 0
    for start in range(0, len(tokens), _BLOCK):
        block = tokens[start : start + _BLOCK]
        if block.dtype.itemsize > 2 or block.dtype.kind == "i":
            inside = block[(block >= 0) & (block < _MOST_IDS)]
            outside += len(block) - len(inside)
            block = inside
        found = np.bincount(block, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    return counts, outside


def _eods(
    part: _Part,
    tokens: npt.NDArray[Any],
    stops: npt.NDArray[np.int64],
    begin: int,
    eod: int,
) -> None:
    """EOD tokens inside documents; searched only where the counts say that there are some."""
    starts = _starts(stops)
    filled = stops > starts
    ending = int(np.count_nonzero(tokens[stops[filled] - 1] == eod))
    part.without_eod = int(np.count_nonzero(filled)) - ending
    total = int(part.counts[eod]) if 0 <= eod < len(part.counts) else 0
    part.inner_eods = total - ending
    if not part.inner_eods:
        return
    places = np.flatnonzero(tokens == eod)
    documents = np.searchsorted(stops, places, side="right")
    inside = places != stops[documents] - 1
    unique, where = np.unique(documents[inside], return_index=True)
    found = places[inside][where] - starts[unique]
    pairs = zip(unique[:EXAMPLES].tolist(), found[:EXAMPLES].tolist(), strict=True)
    part.inner = [(begin + document, position) for document, position in pairs]

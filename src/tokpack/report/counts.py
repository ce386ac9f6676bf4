"""One pass over all tokens of a dataset: how often each id occurs, a hash of each document."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.indexed.format import bin_path
from tokpack.indexed.scan import scan
from tokpack.indexed.table import NO_TOKENS, token_digests
from tokpack.indexed.view_tokens import ViewTokens
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage

if TYPE_CHECKING:
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.indexed.scan import ByteBlock
    from tokpack.indexed.shard import Shard
    from tokpack.progress import Show

    Ends = npt.NDArray[np.int64]

CHUNK_BYTES = 1 << 22  # larger than in other passes: each brings a count for every id
_BLOCK = 1 << 18  # tokens counted at a time: their 64-bit copies stay in the cache
_MOST_IDS = 1 << 22  # ids counted one by one; no tokenizer has more
EXAMPLES = 20


@dataclass
class Counts:
    """What one pass finds, in all tokens or in some.

    counts       int64 [ids]  how often each id occurs
    outside      tokens whose id is negative or too large to be one
    inner_eods   EOD tokens that do not end their document
    inner        the first documents with such, and the position of the first in each
    without_eod  documents with tokens that do not end with EOD
    """

    counts: npt.NDArray[np.int64]
    outside: int = 0
    inner_eods: int = 0
    inner: list[tuple[int, int]] = field(default_factory=list)
    without_eod: int = 0

    def add(self, more: Counts) -> None:
        """Take in what was found in the tokens that follow."""
        if len(more.counts) > len(self.counts):
            more.counts[: len(self.counts)] += self.counts
            self.counts = more.counts
        else:
            self.counts[: len(more.counts)] += more.counts
        self.outside += more.outside
        self.inner_eods += more.inner_eods
        last = self.inner[-1][0] if self.inner else -1  # a document may go on in the next chunk
        self.inner += [(number, at) for number, at in more.inner if number > last]
        del self.inner[EXAMPLES:]
        self.without_eod += more.without_eod


def count_tokens(
    dataset: MMapIndexedDataset,
    ends: Ends,
    *,
    vocab_size: int | None,
    eod: int | None,
    threads: int = 0,
    progress: Show | bool | None = None,
) -> tuple[Counts, npt.NDArray[np.uint64]]:
    """Read every token once, about a nanosecond or two each on a core.

    ``ends`` are the tokens before each document, and all of them at the end: int64
    [documents + 1]. Gives the counts, and uint64 [documents], the upper half of the
    ``tokens_xxh3`` of each document. Memory is the hashes, a count for each id, and two chunks a
    thread, whatever the length of the documents. InputError where a file cannot be read.
    """
    result = Counts(np.zeros(min(vocab_size or 0, _MOST_IDS), np.int64))
    hashes = np.empty(len(ends) - 1, np.uint64)
    workers = threads or min(8, usable_cores())
    stage = ProgressStage(progress, "stats", dataset.token_count, "tokens")
    first = 0
    for shard in dataset.shards():
        stop = first + shard.index.header.entries - 1
        counting = _ShardScan(shard, ends[first : stop + 1] - ends[first], first, eod, hashes)
        path, size = bin_path(shard.prefix), shard.tokens.nbytes
        view = shard.tokens if isinstance(shard.tokens, ViewTokens) else None
        scanning = scan(path, size, counting, threads=workers, chunk=CHUNK_BYTES, tokens=view)
        with closing(scanning) as chunks:
            for begin, block, counts_of_block in chunks:
                counting.hash_across(begin, block)
                result.add(counts_of_block)
                stage.add(len(block) // shard.dtype.itemsize)
        shard.check_current("read")
        hashes[first:stop][counting.starts == counting.stops] = NO_TOKENS
        first = stop
    return result, hashes


class _ShardScan:
    """Counts the tokens of one shard, chunk by chunk, and hashes its documents."""

    def __init__(
        self,
        shard: Shard,
        ends: Ends,
        first: int,
        eod: int | None,
        hashes: npt.NDArray[np.uint64],
    ) -> None:
        self.dtype = shard.dtype
        self.starts, self.stops = ends[:-1], ends[1:]  # tokens of the shard
        self._first = first
        self._eod = eod
        self._hashes = hashes[first : first + len(self.starts)]
        self._state = xxhash.xxh3_128()  # of the document that goes on in the next chunk

    def __call__(self, at: int, block: ByteBlock) -> Counts:
        """Count the tokens of a chunk and hash the documents that lie in it, in any thread."""
        width = self.dtype.itemsize
        tokens = block.view(self.dtype)
        begin, end = at // width, at // width + len(tokens)
        low = int(np.searchsorted(self.starts, begin))
        high = int(np.searchsorted(self.stops, end, side="right"))
        if low < high:
            spans = np.stack((self.starts[low:high], self.stops[low:high]), axis=1) - begin
            digests = token_digests(tokens, spans)
            self._hashes[low:high] = digests[:, :8].copy().view(">u8")[:, 0]
        counts = Counts(*_count(tokens))
        if self._eod is not None:
            self._count_eods(counts, tokens, begin, self._eod)
        return counts

    def hash_across(self, at: int, block: ByteBlock) -> None:
        """Hash the documents that lie in several chunks, which come in order."""
        width = self.dtype.itemsize
        begin, end = at // width, (at + len(block)) // width
        # The document that began before this chunk and has tokens in it.
        number = int(np.searchsorted(self.stops, begin, side="right"))
        if number < len(self.stops) and self.starts[number] < begin:
            stop = int(self.stops[number])
            self._update(block[: (min(stop, end) - begin) * width])
            if stop > end:
                return
            self._hashes[number] = self._state.intdigest() >> 64
        # The one that begins in it and goes on.
        number = int(np.searchsorted(self.stops, end, side="right"))
        if number < len(self.stops) and begin <= self.starts[number] < end:
            self._state.reset()
            self._update(block[(int(self.starts[number]) - begin) * width :])

    def _update(self, block: ByteBlock) -> None:
        tokens = block.view(self.dtype).astype("<i4", copy=False)
        self._state.update(np.ascontiguousarray(tokens).data)

    def _count_eods(self, counts: Counts, tokens: npt.NDArray[Any], begin: int, eod: int) -> None:
        """EOD tokens inside documents; searched only where the counts say that there are some."""
        low = int(np.searchsorted(self.stops, begin, side="right"))
        high = int(np.searchsorted(self.stops, begin + len(tokens), side="right"))
        filled = self.stops[low:high][self.stops[low:high] > self.starts[low:high]]
        ending = int(np.count_nonzero(tokens[filled - begin - 1] == eod))
        counts.without_eod = len(filled) - ending
        total = int(counts.counts[eod]) if 0 <= eod < len(counts.counts) else 0
        counts.inner_eods = total - ending
        if not counts.inner_eods:
            return
        places = np.flatnonzero(tokens == eod) + begin
        documents = np.searchsorted(self.stops, places, side="right")
        inside = places != self.stops[documents] - 1
        unique, where = np.unique(documents[inside], return_index=True)
        positions = places[inside][where] - self.starts[unique]
        pairs = zip(unique[:EXAMPLES].tolist(), positions[:EXAMPLES].tolist(), strict=True)
        counts.inner = [(self._first + document, position) for document, position in pairs]


def _count(tokens: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int]:
    """How often each id occurs, as long as the largest needs it, and how many are no ids."""
    counts, outside = np.zeros(0, np.int64), 0
    for start in range(0, len(tokens), _BLOCK):
        block = tokens[start : start + _BLOCK]
        if block.dtype.itemsize > 2 or block.dtype.kind == "i":
            inside = block[(block >= 0) & (block < _MOST_IDS)]
            outside += len(block) - len(inside)
            block = inside
        more = np.bincount(block, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    return counts, outside

"""Figures about all tokens and documents of a dataset."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.dataset import MMapIndexedDataset, ViewTokens
from tokpack.dataset.format import bin_path, document_ends
from tokpack.dataset.mapped import scan
from tokpack.dataset.overview import Bin, Lengths, histogram, summarize, tally
from tokpack.dataset.results import (
    NewResult,
    Result,
    forget,
    open_unchanged,
    pieces_of,
    shard_tasks,
)
from tokpack.dataset.sources import bytes_per_token, own_manifest, shares
from tokpack.dataset.table import NO_TOKENS, token_digests
from tokpack.display import drawn, shown
from tokpack.errors import UsageError, option
from tokpack.look.facts import bases
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.dataset import Shard
    from tokpack.dataset.mapped import ByteBlock
    from tokpack.dataset.results import RunTasks, Task
    from tokpack.dataset.sources import SourceShare
    from tokpack.dataset.spelling import Spelling
    from tokpack.progress import Show

    Ends = npt.NDArray[np.int64]


CHUNK_BYTES = 1 << 22  # larger than elsewhere: each chunk has a count for every id
_BLOCK = 1 << 18  # tokens that are counted at a time, so that their 64-bit copies stay in the cache
_MOST_IDS = 1 << 22  # ids counted one by one; no tokenizer has more
EXAMPLES = 20


@dataclass
class Counts:
    """What one pass finds, in all tokens or in some.

    counts       int64 [ids]  how often each id occurs
    outside      tokens with a negative or too large id
    inner_eods   EOD tokens that do not end their document
    inner        the first documents with such, and the position of the first one in each
    without_eod  documents with tokens that do not end with EOD
    """

    counts: npt.NDArray[np.int64]
    outside: int = 0
    inner_eods: int = 0
    inner: list[tuple[int, int]] = field(default_factory=list)
    without_eod: int = 0

    def add(self, more: Counts) -> None:
        """Add the counts of the tokens that follow."""
        if len(more.counts) > len(self.counts):
            more.counts[: len(self.counts)] += self.counts
            self.counts = more.counts
        else:
            self.counts[: len(more.counts)] += more.counts
        self.outside += more.outside
        self.inner_eods += more.inner_eods
        last = self.inner[-1][0] if self.inner else -1  # the next chunk may continue this document
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
    tasks: RunTasks | None = None,
) -> tuple[Counts, npt.NDArray[np.uint64]]:
    """Read every token once, which takes a nanosecond or two each on a core.

    ``ends`` are the tokens before each document, and of all documents at the end: int64 [documents
    + 1]. Returns the counts, and uint64 [documents], the upper half of the ``tokens_xxh3`` of each
    document. Memory is for the hashes, a count for each id, and two chunks per thread, whatever the
    length of documents. InputError if a file cannot be read. ``tasks`` counts shards elsewhere.
    """
    result = Counts(np.zeros(min(vocab_size or 0, _MOST_IDS), np.int64))
    if tasks is not None:
        return result, _add_counted(result, dataset, tasks, vocab_size, eod)
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


def _add_counted(
    result: Counts,
    dataset: MMapIndexedDataset,
    run: RunTasks,
    vocab_size: int | None,
    eod: int | None,
) -> npt.NDArray[np.uint64]:
    """Add the counts of all shards, from a task for each. Returns the hashes of their documents."""
    if dataset.view is not None:
        raise UsageError(
            f"{dataset.path_prefix}: is a view, whose tokens only one machine counts: leave out "
            f"{option('engine')}, or count the datasets that it selects from"
        )
    pieces = pieces_of(dataset.path_prefix, dataset.records)
    tasks = shard_tasks("stats", pieces, vocab_size=vocab_size, eod=eod)
    run("stats", tasks)
    hashes, first = [np.zeros(0, np.uint64)], 0
    for task in tasks:
        found = Result(task.result)
        facts = found.facts
        facts["inner"] = [(first + document, position) for document, position in facts["inner"]]
        result.add(Counts(found.array(0), **facts))
        hashes.append(found.array(1))
        first += len(hashes[-1])
    forget(task.result for task in tasks)
    return np.concatenate(hashes)


def stats_task(task: Task, threads: int, progress: Show) -> None:
    """Count the tokens of a shard, and write the counts."""
    facts = dict(task.facts)
    prefix, files = facts.pop("prefix"), facts.pop("files")
    with NewResult(task.result) as new, open_unchanged(prefix, files) as dataset:
        ends = document_ends(dataset.sizes, dataset.doc_idx)
        found, hashes = count_tokens(dataset, ends, **facts, threads=threads, progress=progress)
        counts = asdict(found)
        new.finish(counts, [counts.pop("counts"), hashes])


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
        self._state = xxhash.xxh3_128()  # for a document that continues in the next chunk

    def __call__(self, at: int, block: ByteBlock) -> Counts:
        """Count the tokens of a chunk and hash the documents that lie in it; called in any
        thread.
        """
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
        """Hash documents that span several chunks, which must come in order."""
        width = self.dtype.itemsize
        begin, end = at // width, (at + len(block)) // width
        # A document that began before this chunk and has tokens in it.
        number = int(np.searchsorted(self.stops, begin, side="right"))
        if number < len(self.stops) and self.starts[number] < begin:
            stop = int(self.stops[number])
            self._update(block[: (min(stop, end) - begin) * width])
            if stop > end:
                return
            self._hashes[number] = self._state.intdigest() >> 64
        # A document that begins in this chunk and continues in the next.
        number = int(np.searchsorted(self.stops, end, side="right"))
        if number < len(self.stops) and begin <= self.starts[number] < end:
            self._state.reset()
            self._update(block[(int(self.starts[number]) - begin) * width :])

    def _update(self, block: ByteBlock) -> None:
        tokens = block.view(self.dtype).astype("<i4", copy=False)
        self._state.update(np.ascontiguousarray(tokens).data)

    def _count_eods(self, counts: Counts, tokens: npt.NDArray[Any], begin: int, eod: int) -> None:
        """Find EOD tokens inside documents, if the counts show that there are any."""
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
    """How often each id occurs, up to the largest one, and the number of invalid ids."""
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


_FIRST = 4  # documents of a group that are listed
_TOKENS = 64
_CHARACTERS = 80


@dataclass(frozen=True)
class DuplicateGroup:
    """``copies`` equal documents of ``length`` tokens; ``documents`` are the first of them.

    ``text`` is their beginning, "" without a tokenizer.
    """

    copies: int
    length: int
    documents: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Duplicates:
    """Documents equal to an earlier one, token for token.

    documents  how many there are: what deduplication would remove
    tokens     their tokens
    groups     distinct texts that occur more than once
    examples   the groups that waste the most tokens
    """

    documents: int
    tokens: int
    groups: int
    examples: tuple[DuplicateGroup, ...]


@dataclass(frozen=True)
class CrossDuplicates:
    """The documents of one dataset that are also in another, token for token, and their tokens."""

    documents: int
    tokens: int


class DuplicateFinder:
    """Compares the documents of several datasets by their hashes, 16 bytes for each.

    Meaningful only if all datasets have the same tokenizer.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]] = []

    def add(self, lengths: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]) -> None:
        """Add a dataset: the tokens and the hash of each of its documents."""
        self._seen.append((lengths, hashes))

    def result(self) -> list[CrossDuplicates]:
        """What each dataset shares with the others, in the order in which they were added."""
        different = [np.unique(hashes[lengths > 0]) for lengths, hashes in self._seen]
        every = np.sort(np.concatenate([np.zeros(0, np.uint64), *different]))
        several = np.unique(every[1:][every[1:] == every[:-1]])
        result = []
        for lengths, hashes in self._seen:
            repeated = np.isin(hashes, several) & (lengths > 0)
            result.append(
                CrossDuplicates(int(np.count_nonzero(repeated)), int(lengths[repeated].sum()))
            )
        return result


_MOST_GROUPS = 20  # examples of duplicates


def find_duplicates(
    dataset: MMapIndexedDataset,
    lengths: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    spelling: Spelling | None = None,
) -> Duplicates:
    """Group documents by their 64-bit hash; empty ones do not count.

    ``lengths`` are their tokens. Different documents have the same hash in one of 2^64 pairs: with
    a billion documents, that is one pair in 37 datasets. Examples are compared token by token.
    """
    order = np.argsort(hashes, kind="stable")
    order = order[lengths[order] > 0]
    sorted_hashes = hashes[order]
    first = np.ones(len(order), bool)
    first[1:] = sorted_hashes[1:] != sorted_hashes[:-1]
    starts = np.flatnonzero(first)
    copies = np.diff(np.append(starts, len(order)))
    repeated = copies > 1
    starts, copies = starts[repeated], copies[repeated]
    again = order[~first]
    wasted = (copies - 1) * lengths[order[starts]]
    worst = np.lexsort((order[starts], -wasted))[:_MOST_GROUPS]
    spans = zip(starts[worst], copies[worst], strict=True)
    groups = (_group(dataset, order[start : start + size], spelling) for start, size in spans)
    return Duplicates(
        documents=len(again),
        tokens=int(lengths[again].sum()),
        groups=len(starts),
        examples=tuple(group for group in groups if group),
    )


def _group(
    dataset: MMapIndexedDataset, documents: npt.NDArray[np.int64], spelling: Spelling | None
) -> DuplicateGroup | None:
    """The group of equal documents, or None if its first two documents only have the same hash."""
    first, second = (dataset.document(int(number)) for number in documents[:2])
    if not np.array_equal(first, second):
        return None
    text = ""
    if spelling:
        start = spelling.text(first[:_TOKENS].tolist())
        more = "\N{HORIZONTAL ELLIPSIS}".encode() if len(first) > _TOKENS else b""
        text = shown(start + more, limit=_CHARACTERS)
    return DuplicateGroup(len(documents), len(first), tuple(documents[:_FIRST].tolist()), text)


TOP = 30
_POINTS = 160
_UNKNOWN = ("<unk>", "[UNK]", "<|unk|>")
_DOCUMENTS_SHOWN, _TOKENS_SHOWN = 10, 60
_MORE = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True)
class Token:
    """A token, how often it occurs, and its text; "" without a tokenizer."""

    id: int
    count: int
    text: str


@dataclass(frozen=True)
class Frequency:
    """How often tokens occur.

    used      different ids that occur
    top       the most frequent ones
    zipf      (rank, count), ranks spread evenly on a logarithmic scale
    coverage  how many of the most frequent ids make up 50, 90 and 99 percent of all tokens
    entropy   bits per token, of the distribution of ids
    """

    used: int
    top: tuple[Token, ...]
    zipf: tuple[tuple[int, int], ...]
    coverage: dict[int, int]
    entropy: float


@dataclass(frozen=True)
class Eods:
    """EOD tokens that do not end a document, and documents that do not end with one."""

    id: int
    inside: int
    examples: tuple[tuple[int, int], ...]  # document, position of the first EOD inside
    without: int


@dataclass(frozen=True)
class Packed:
    """The samples of best-fit packing, and how full they are.

    ``cut`` sequences are longer than a sample.
    """

    samples: int
    fill: float
    cut: int


@dataclass(frozen=True)
class Stats:
    """The figures of one dataset; what is not known is None.

    ``empty`` counts documents without tokens in the index, ``outside`` ids outside the vocabulary;
    ``shared`` is what other datasets have too. ``trained`` counts trained tokens, if a mask or
    labels say which are; ``trained_texts`` are the trained texts of the first documents with a
    mask, by number. ``roles`` has (name, tokens, trained tokens) for each role in conversations.
    ``truncated`` conversations were cut when they were encoded; ``packed`` is set by
    ``with_packing``. ``view_of`` are the datasets under a view.
    """

    prefix: str
    dtype: str
    tokenizer: str
    documents: int
    sequences: int
    tokens: int
    empty: int
    vocab_size: int | None
    bytes_per_token: float | None
    lengths: Lengths | None
    histogram: tuple[Bin, ...]
    frequency: Frequency
    duplicates: Duplicates
    eods: Eods | None
    unknown: int | None
    outside: int
    sources: tuple[SourceShare, ...]
    shared: CrossDuplicates | None = None
    trained: int | None = None
    trained_texts: tuple[tuple[int, str], ...] = ()
    roles: tuple[tuple[str, int, int], ...] = ()
    truncated: int = 0
    packed: Packed | None = None
    view_of: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Stats({self.prefix!r}, {self.documents} documents, {self.tokens} tokens)"

    _repr_html_ = drawn

    def with_packing(self, packing: Any) -> Stats:
        """The same figures with ``packing``, the PackingStats of a GPTDataset."""
        return replace(self, packed=Packed(packing.samples, packing.fill, packing.cut))

    def to_json(self) -> dict[str, Any]:
        """A form that ``json`` can write."""
        return asdict(self)


def stats(
    dataset: MMapIndexedDataset,
    spelling: Spelling | None = None,
    *,
    threads: int = 0,
    progress: Show | bool | None = None,
    across: DuplicateFinder | None = None,
    tasks: RunTasks | None = None,
) -> Stats:
    """Read a whole dataset and count; ``threads`` 0 is one for each core, 8 at most.

    The vocabulary and its special tokens are those of ``spelling``, else of the manifest. Raises
    FormatError where the index is broken. ``progress`` is told how many tokens are read, and
    ``across``, which compares several datasets, of the documents. ``tasks`` counts the tokens of
    shards elsewhere.
    """
    special: dict[str, Any] = {}
    vocab_size, eod, name = None, None, ""
    if manifest := own_manifest(dataset):
        vocab_size, eod = manifest.token_fact("vocab_size"), manifest.token_fact("eod_id")
        name = str(manifest.tokenizer.get("name", ""))
        special = manifest.tokenizer.get("special_ids") or {}
    if spelling:
        tokenizer = spelling.tokenizer
        name, special = tokenizer.name, tokenizer.special_ids
        vocab_size, eod = tokenizer.vocab_size, tokenizer.eod_id
    dataset.validate()
    ends = document_ends(dataset.sizes, dataset.doc_idx)
    lengths = np.diff(ends)
    scan, hashes = count_tokens(
        dataset,
        ends,
        vocab_size=vocab_size,
        eod=eod,
        threads=threads,
        progress=progress,
        tasks=tasks,
    )
    if across:
        across.add(lengths, hashes)
    counts, lengths_tally = scan.counts, tally([lengths])
    beyond = int(counts[vocab_size:].sum()) if vocab_size is not None else 0
    unknown = next((special[token] for token in _UNKNOWN if token in special), None)
    return Stats(
        prefix=dataset.path_prefix,
        dtype=str(dataset.dtype),
        tokenizer=name,
        documents=dataset.documents,
        sequences=len(dataset),
        tokens=dataset.token_count,
        empty=int(np.count_nonzero(lengths == 0)),
        vocab_size=vocab_size,
        bytes_per_token=_bytes_per_token(dataset, spelling, counts, eod),
        lengths=summarize(*lengths_tally),
        histogram=tuple(histogram(*lengths_tally)),
        frequency=_frequency(counts, spelling),
        duplicates=find_duplicates(dataset, lengths, hashes, spelling),
        eods=None
        if eod is None
        else Eods(eod, scan.inner_eods, tuple(scan.inner), scan.without_eod),
        unknown=_occurrences(counts, unknown),
        outside=scan.outside + beyond,
        sources=tuple(shares(dataset)),
        trained=manifest.trained if manifest else None,
        trained_texts=tuple(_trained_texts(dataset, spelling)) if spelling else (),
        roles=tuple(
            (role, counts["tokens"], counts["trained"])
            for role, counts in (manifest.roles.items() if manifest else ())
        ),
        truncated=manifest.truncated if manifest else 0,
        view_of=bases(dataset),
    )


def _trained_texts(dataset: MMapIndexedDataset, spelling: Spelling) -> Iterator[tuple[int, str]]:
    """The trained texts of the first documents, by number; none without a mask."""
    mask = dataset.mask
    if mask is None:
        return
    for number in range(min(_DOCUMENTS_SHOWN, dataset.documents)):
        first, end = dataset.doc_idx[number : number + 2].tolist()
        parts = []
        for i in range(first, end):
            ids, marks = dataset[i], mask[i].astype(np.int8)
            cuts = np.flatnonzero(np.diff(marks, prepend=0, append=0)).tolist()
            for begin, stop in zip(cuts[::2], cuts[1::2], strict=True):
                text = spelling.text(ids[begin : min(stop, begin + _TOKENS_SHOWN)])
                parts.append(shown(text) + ("" if stop <= begin + _TOKENS_SHOWN else _MORE))
        yield number, f" {_MORE} ".join(parts)


def hash_documents(
    dataset: MMapIndexedDataset, across: DuplicateFinder, *, progress: Show | bool | None = None
) -> None:
    """Read a whole dataset for a comparison with others. FormatError if it is broken."""
    dataset.validate()
    ends = document_ends(dataset.sizes, dataset.doc_idx)
    _, hashes = count_tokens(dataset, ends, vocab_size=None, eod=None, progress=progress)
    across.add(np.diff(ends), hashes)


def _occurrences(counts: npt.NDArray[np.int64], token: object) -> int | None:
    if not isinstance(token, int):
        return None
    return int(counts[token]) if 0 <= token < len(counts) else 0


def _bytes_per_token(
    dataset: MMapIndexedDataset,
    spelling: Spelling | None,
    counts: npt.NDArray[np.int64],
    eod: int | None,
) -> float | None:
    """Bytes per token by the manifest, or by a vocabulary with the bytes of each token."""
    ratio = bytes_per_token(dataset)
    if ratio is not None or spelling is None or spelling.table is None:
        return ratio
    in_vocabulary = counts[: len(spelling.table)].copy()
    sizes = np.array([len(word) for word in spelling.table[: len(in_vocabulary)]], np.int64)
    total = int(in_vocabulary.sum())
    if eod is not None and eod < len(in_vocabulary):
        in_vocabulary[eod] = 0
    return float(in_vocabulary @ sizes) / total if total else None


def _frequency(counts: npt.NDArray[np.int64], spelling: Spelling | None) -> Frequency:
    order = np.argsort(-counts, kind="stable")
    ranked = counts[order]
    used = int(np.count_nonzero(ranked))
    ranked = ranked[:used]
    total = int(ranked.sum())
    if not total:
        return Frequency(0, (), (), {}, 0.0)
    shares = ranked / total
    running = np.cumsum(ranked)
    ranks = np.unique(np.round(np.geomspace(1, used, _POINTS)).astype(np.int64))
    coverage = {
        share: int(np.searchsorted(running, -(-total * share // 100))) + 1 for share in (50, 90, 99)
    }
    top = tuple(
        Token(int(i), int(counts[i]), shown(spelling.alone(int(i))) if spelling else "")
        for i in order[: min(TOP, used)]
    )
    zipf = tuple((int(rank), int(ranked[rank - 1])) for rank in ranks)
    return Frequency(used, top, zipf, coverage, float(-(shares * np.log2(shares)).sum()))

"""The description of a dataset on one screen."""

from __future__ import annotations

import operator
import random
import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.counts import CHOSEN, ChosenCounts, counts_last
from tokpack.dataset.format import bin_path, idx_path, release
from tokpack.dataset.manifest import manifest_path
from tokpack.dataset.sources import bytes_per_token, own_manifest, shares
from tokpack.dataset.spelling import Spelling, find_tokenizer
from tokpack.dataset.table import DocumentTable, dropped_path, table_path
from tokpack.dataset.track import track_path
from tokpack.dataset.view import HEADER_BYTES, selection_path
from tokpack.errors import TokpackError, UsageError
from tokpack.progress import ProgressStage
from tokpack.quantities import counted
from tokpack.storage import identity, is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from tokpack.dataset.dataset import MMapIndexedDataset
    from tokpack.dataset.sources import SourceShare
    from tokpack.progress import Show

    Counts = npt.NDArray[np.int64]


_GREP_TOKENS = 1 << 18
_RANGE = re.compile(r"(-?\d+)|(-?\d+)?:(-?\d+)?")


def ranges(text: str, count: int) -> list[range]:
    """The documents of a request such as ``17``, ``-1``, ``3:8``, ``-5:`` or ``1,7,20:30``.

    Negative numbers count from the end of ``count`` documents; ranges do not include their end.
    UsageError if a document does not exist, or a range is empty.
    """
    result = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise UsageError(
                f"{word!r} is not a document or a range of them, such as 17, -1 or 3:8"
            )
        if match[1] is None:
            bounds = slice(*(None if edge is None else int(edge) for edge in match.group(2, 3)))
            chosen = range(*bounds.indices(count))
        else:
            number = int(match[1])
            if not -count <= number < count:
                raise UsageError(f"there is no document {number}: the dataset has {count}")
            chosen = range(number % count, number % count + 1)
        if not chosen:
            raise UsageError(f"there is no document in {word!r}: the dataset has {count}")
        result.append(chosen)
    return result


def sample_documents(count: int, most: int) -> list[int]:
    """``most`` of ``count`` documents, spread evenly, with the first and the last."""
    most = min(most, count)
    if most == 1:
        return [0]
    return [i * (count - 1) // (most - 1) for i in range(most)]


def random_documents(count: int, most: int, seed: int | None = None) -> list[int]:
    """``most`` different documents of ``count``, chosen at random, ascending."""
    return sorted(random.Random(seed).sample(range(count), min(most, count)))


@dataclass(frozen=True)
class Match:
    """A document that contains the text: at ``byte`` of its decoded text, in token ``token``."""

    document: int
    byte: int
    token: int


def grep(
    dataset: MMapIndexedDataset,
    spelling: Spelling,
    text: str,
    *,
    progress: Show | None = None,
    within: range | None = None,
) -> Iterator[Match]:
    """The documents whose decoded text contains ``text``, in order, as they are found.

    ``within`` are the documents that are searched, all by default. The same letters in another
    Unicode normalization are another text. ``progress`` is told how many documents are searched.
    UsageError for an empty text.
    """
    if not text:
        raise UsageError("the text to look for is empty")
    within = range(dataset.documents) if within is None else within
    needle = text.encode("utf-8", "surrogateescape")
    stage, reported = ProgressStage(progress, "search", len(within), "documents"), within.start
    for first, rows in _batches(dataset, within):
        # Many documents are searched together, then one by one if there is a match.
        together = spelling.table is None or needle in spelling.text(np.concatenate(rows))
        for number, row in enumerate(rows if together else (), first):
            byte = spelling.text(row).find(needle)
            if byte >= 0:
                stage.add(number + 1 - reported)
                reported = number + 1
                yield Match(number, byte, _token_at(spelling, row, byte))
        stage.add(first + len(rows) - reported)
        reported = first + len(rows)


def _batches(
    dataset: MMapIndexedDataset, within: range
) -> Iterator[tuple[int, list[npt.NDArray[Any]]]]:
    """Consecutive documents, about 100,000 tokens together, and the number of the first."""
    first, rows, tokens = within.start, [], 0
    for number in within:
        row = dataset.document(number)
        rows.append(row)
        tokens += len(row)
        if tokens >= _GREP_TOKENS:
            yield first, rows
            first, rows, tokens = number + 1, [], 0
    if rows:
        yield first, rows


def _token_at(spelling: Spelling, row: npt.NDArray[Any], byte: int) -> int:
    end = 0
    if spelling.table is None:
        row = row[: 1 << 14]  # decoding token by token is slow
    for number, text in enumerate(spelling.of(row.tolist())):
        end += len(text)
        if end > byte:
            return number
    return 0


PERCENTILES = (1, 10, 50, 90, 99)
_SHORT = 1 << 16  # lengths that are counted in an array
_CHUNK = 1 << 20  # documents that are read together


@dataclass(frozen=True)
class Lengths:
    """The lengths of documents in tokens: extremes, mean, and percentiles, see PERCENTILES.

    A percentile is always the length of some document.
    """

    minimum: int
    maximum: int
    mean: float
    percentiles: dict[int, int]

    def rows(self) -> list[tuple[str, float]]:
        """Pairs of name and value, from the shortest to the longest, then the mean."""
        middle = [(f"{share}%", float(value)) for share, value in self.percentiles.items()]
        ends = (("min", float(self.minimum)), ("max", float(self.maximum)))
        return [ends[0], *middle, ends[1], ("mean", self.mean)]


def summarize(lengths: Counts, counts: Counts) -> Lengths | None:
    """The percentiles of a tally; None without documents."""
    if not lengths.size:
        return None
    running = np.cumsum(counts)
    total = int(running[-1])
    ranks = [max(-(-total * share // 100), 1) for share in PERCENTILES]  # the inverted CDF
    values = lengths[np.searchsorted(running, ranks)]
    return Lengths(
        int(lengths[0]),
        int(lengths[-1]),
        sum(map(operator.mul, lengths.tolist(), counts.tolist())) / total,
        dict(zip(PERCENTILES, values.tolist(), strict=True)),
    )


def tally(chunks: Iterable[Counts]) -> tuple[Counts, Counts]:
    """The different lengths in int64 arrays, ascending, and the number of documents of each.

    Memory depends on the number of different lengths, which is less than the square root of twice
    the tokens.
    """
    short = np.zeros(_SHORT, np.int64)
    long = Counter[int]()
    for chunk in chunks:
        few = np.bincount(chunk[chunk < _SHORT])
        short[: len(few)] += few
        lengths, counts = np.unique(chunk[chunk >= _SHORT], return_counts=True)
        long.update(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))
    used = np.flatnonzero(short)
    more = np.array(sorted(long.items()), np.int64).reshape(-1, 2)
    return np.concatenate((used, more[:, 0])), np.concatenate((short[used], more[:, 1]))


@dataclass(frozen=True)
class Bin:
    """Documents of ``begin`` to ``end - 1`` tokens, and all their tokens."""

    begin: int
    end: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class LengthStats:
    """The lengths of a dataset's documents."""

    documents: int
    tokens: int
    lengths: Lengths | None
    histogram: tuple[Bin, ...]


def measure(dataset: MMapIndexedDataset) -> LengthStats:
    """Length statistics from the index, a few ns per sequence; no tokens are read.

    Memory does not grow with the index. FormatError if an entry of it is broken.
    """
    dataset.validate()
    lengths, counts = tally(_length_chunks(dataset))
    bins = tuple(histogram(lengths, counts))
    return LengthStats(dataset.documents, dataset.token_count, summarize(lengths, counts), bins)


def _length_chunks(dataset: MMapIndexedDataset) -> Iterator[Counts]:
    """Tokens of each document, some at a time."""
    for shard in dataset.shards():
        bounds, pointers = shard.index.doc_idx, shard.index.pointers
        size, end = shard.dtype.itemsize, shard.tokens.nbytes
        for begin in range(0, len(bounds) - 1, _CHUNK):
            firsts = np.array(bounds[begin : begin + _CHUNK + 1])
            inside = firsts < len(shard)
            places = np.full(len(firsts), end, np.int64)
            places[inside] = pointers[firsts[inside]]
            yield np.diff(places) // size
            release(shard.index.lengths)


def histogram(lengths: Counts, counts: Counts) -> list[Bin]:
    """Bins of a tally from shortest to longest document; widths double every second bin."""
    if not lengths.size:
        return []
    steps = 2 * int(lengths[-1]).bit_length() + 1
    edges = np.unique(np.round(2.0 ** (np.arange(-2, steps + 1) / 2)).astype(np.int64))
    edges = np.concatenate([[0], edges[edges > 0]])
    bins = np.searchsorted(edges, lengths, side="right") - 1
    documents = np.bincount(bins, weights=counts, minlength=len(edges))
    tokens = np.bincount(bins, weights=lengths * counts, minlength=len(edges))
    return [
        Bin(int(edges[i]), int(edges[i + 1]), int(documents[i]), int(tokens[i]))
        for i in range(int(bins[0]), int(bins[-1]) + 1)
    ]


_SAMPLE = 200  # documents to measure bytes per token by
_SAMPLE_TOKENS = 1 << 16


@dataclass(frozen=True)
class Overview(ChosenCounts):
    """The facts about a dataset; what is not known is None, "" or empty.

    ``measured``: ``bytes_per_token`` comes from decoded documents, not from the manifest.
    """

    prefix: str
    documents: int
    sequences: int
    tokens: int
    dtype: str
    multimodal: bool
    tracks: dict[str, str]  # their dtypes, by name
    trained: int | None
    tokenizer: dict[str, Any]
    created: str
    version: str
    records: int | None
    empty: int | None
    rejected: int | None
    text_bytes: int | None
    bytes_per_token: float | None
    measured: bool
    lengths: Lengths | None
    sources: tuple[SourceShare, ...]
    columns: dict[str, str]  # the kept ones of the table of its documents, with their types
    files: dict[str, int]


def overview(dataset: MMapIndexedDataset, spelling: Spelling | None = None) -> Overview:
    """Describe a dataset; reads the whole index, and few tokens if any.

    Raises FormatError if an entry of the index is broken.
    """
    lengths = measure(dataset).lengths
    manifest = own_manifest(dataset)
    tokenizer = dict(manifest.tokenizer) if manifest else {}
    if not tokenizer and spelling:
        tokenizer = spelling.tokenizer.describe()
    ratio = bytes_per_token(dataset)
    measured = ratio is None and spelling is not None
    if measured and spelling:
        ratio = _measure(dataset, spelling)
    return Overview(
        prefix=dataset.path_prefix,
        documents=dataset.documents,
        sequences=len(dataset),
        tokens=dataset.token_count,
        dtype=str(dataset.dtype),
        multimodal=dataset.modes is not None,
        tracks={name: str(dtype) for name, dtype in dataset.tracks.items()} if manifest else {},
        tokenizer=tokenizer,
        created=manifest.created if manifest else "",
        version=manifest.tokpack_version if manifest else "",
        trained=manifest.trained if manifest else None,
        records=manifest.records if manifest else None,
        empty=manifest.empty if manifest else None,
        rejected=manifest.rejected if manifest else None,
        **({name: getattr(manifest, name) for name in CHOSEN} if manifest else {}),
        # The text's bytes are unknown for views, and for datasets without manifests.
        text_bytes=(manifest.text_bytes or None) if manifest else None,
        bytes_per_token=ratio,
        measured=measured and ratio is not None,
        lengths=lengths,
        sources=tuple(shares(dataset)),
        columns=_columns(dataset),
        files=_files(dataset),
    )


def describe(dataset: MMapIndexedDataset) -> dict[str, Any]:
    """What ``tokpack inspect --json`` prints of a dataset: the fields of an Overview.

    If no tokenizer is found, nothing is decoded.
    """
    tokenizer = find_tokenizer(dataset).tokenizer
    return counts_last(asdict(overview(dataset, Spelling(tokenizer) if tokenizer else None)))


def _measure(dataset: MMapIndexedDataset, spelling: Spelling) -> float | None:
    text = tokens = 0
    eod = spelling.tokenizer.eod_id
    for number in sample_documents(dataset.documents, _SAMPLE) if dataset.documents else ():
        ids = dataset.document(number)[:_SAMPLE_TOKENS].tolist()
        tokens += len(ids)
        text += len(spelling.text([token for token in ids if token != eod]))
    return text / tokens if tokens else None


def _columns(dataset: MMapIndexedDataset) -> dict[str, str]:
    """The kept columns; none if the table is missing, or would have to be fetched."""
    if own_manifest(dataset) is None or is_url(dataset.path_prefix):
        return {}
    try:
        return DocumentTable(dataset.path_prefix).kept
    except TokpackError:
        return {}


def _files(dataset: MMapIndexedDataset) -> dict[str, int]:
    """Sizes of the existing files of a dataset; for a virtual one, summed over its pieces."""
    prefix = dataset.path_prefix
    paths = [bin_path(prefix), idx_path(prefix), manifest_path(prefix)]
    manifest = own_manifest(dataset)
    if manifest:
        paths += [table_path(prefix)] if manifest.table else []
        paths += [dropped_path(prefix)] if manifest.dropped else []
    if not dataset.under.records:
        paths[2:2] = [track_path(prefix, name) for name in dataset.tracks]
    sizes = {path: file.size for path in paths if (file := identity(path))}
    records = dataset.under.records
    if dataset.view is not None:
        sizes[selection_path(prefix)] = dataset.view.numbers.nbytes + HEADER_BYTES
        sizes[f"{counted(len(records), 'dataset')} that it selects from"] = sum(
            one.bin_bytes + one.idx_bytes for one in records
        )
    elif records:
        sizes[f"{len(records)} pieces"] = sum(one.bin_bytes + one.idx_bytes for one in records)
    return sizes

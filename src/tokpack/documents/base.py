"""The datasets under views, and the numbers of documents in them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tokpack.dataset import (
    ViewTokens,
    are_trained,
    open_shard,
    piece_prefix,
    read_tracks,
    shard_fingerprint,
)
from tokpack.dataset.format import bin_path, document_ends, starts_of
from tokpack.dataset.manifest import TRAINED_TRACKS, Manifest, ShardRecord
from tokpack.dataset.mapped import scan
from tokpack.dataset.merge import InputShard, MergeInput, check_same
from tokpack.dataset.table import import_parquet, plain_ids
from tokpack.display import brief
from tokpack.errors import UsageError, option
from tokpack.quantities import count_of, share_of
from tokpack.sources import table_of
from tokpack.storage.disk.blocks import BlockSums, checksum_of_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from tokpack.dataset import MMapIndexedDataset, Shard
    from tokpack.dataset.mapped import ByteBlock

    Int64s = npt.NDArray[np.int64]


class Base:
    """The datasets under a view, each once, and the numbers of documents in them."""

    def __init__(self, datasets: Sequence[MMapIndexedDataset]) -> None:
        self.datasets = datasets
        self.inputs = [_merge_input(dataset) for dataset in datasets]
        if not self.inputs:
            raise UsageError("nothing to select from: name the datasets by their prefixes")
        check_same(self.inputs)
        self.pairs = self.inputs[0].pairs
        for one in self.inputs:
            if any(shard.multimodal for shard in one.shards):
                raise UsageError(f"{one.name} is multimodal: a view is of text only")
        self.sums: dict[str, str] = {}  # checksums of .bin files without a manifest
        places: dict[str, int] = {}
        self.records: list[ShardRecord] = []
        for one in self.inputs:
            for shard in one.shards:
                if places.setdefault(shard.record.prefix, len(self.records)) == len(self.records):
                    self.records.append(shard.record)
        self.starts = starts_of([record.documents for record in self.records])
        self.firsts = starts_of([dataset.documents for dataset in datasets])
        self.before: dict[int, int] = {}  # documents before a record in its dataset
        self.moves = []  # for the shards of each input, the offset of document numbers
        for one in self.inputs:
            here = starts_of([shard.record.documents for shard in one.shards])[:-1]
            places_here = [places[shard.record.prefix] for shard in one.shards]
            for place, first in zip(places_here, here.tolist(), strict=True):
                self.before.setdefault(place, first)
            self.moves.append((here, self.starts[places_here] - here))

    def shards(self) -> Iterator[Shard]:
        """The shards with the documents, in the order of ``records``, opened on demand."""
        for record in self.records:
            yield open_shard(record.prefix)

    def record(self, one: ShardRecord, prefix: str) -> ShardRecord:
        """A record for a view that calls it ``prefix``."""
        return replace(one, prefix=prefix, xxh3_128=one.xxh3_128 or self.sums.get(one.prefix, ""))

    def numbers(self, dataset: int, documents: Int64s) -> Int64s:
        """The base numbers of documents of an input, which are counted there from 0."""
        if (view := self.datasets[dataset].view) is not None:
            documents = view.numbers[documents].astype(np.int64)
        here, moves = self.moves[dataset]
        if len(moves) == 1:
            documents += moves[0]
        else:
            documents += moves[np.searchsorted(here, documents, side="right") - 1]
        return documents

    def numbers_through(self, documents: Int64s) -> Int64s:
        """The numbers in the base of documents that are numbered through all datasets."""
        datasets = np.searchsorted(self.firsts[1:], documents, side="right")
        result = np.empty_like(documents)
        for dataset in np.flatnonzero(np.bincount(datasets)).tolist():
            here = datasets == dataset
            result[here] = self.numbers(dataset, documents[here] - self.firsts[dataset])
        return result

    def places(self, dataset: int, documents: slice) -> Int64s | slice:
        """The ``numbers`` of consecutive documents; a slice if they are consecutive in the base,
        too.
        """
        _, moves = self.moves[dataset]
        if self.datasets[dataset].view is None and len(moves) == 1:
            return slice(documents.start + int(moves[0]), documents.stop + int(moves[0]))
        return self.numbers(dataset, np.arange(documents.start, documents.stop))


def _merge_input(dataset: MMapIndexedDataset) -> MergeInput:
    """A dataset as the shards that have its documents, each with its full prefix."""
    prefix, records = dataset.path_prefix, dataset.under.records
    shards = []
    for number, shard in enumerate(dataset.under):
        if records and records[number].fingerprint:
            record = replace(records[number], prefix=piece_prefix(prefix, records[number]))
        else:
            manifest = Manifest.find(shard.prefix)
            record = ShardRecord.of(shard, manifest, f"{shard_fingerprint(shard):016x}")
        multimodal = shard.index.header.multimodal if len(shard) else None
        shards.append(InputShard(record, shard.identity, None, multimodal))
    return MergeInput(prefix, dataset.dtype, shards, dataset.manifest, dataset.pairs)


Result = TypeVar("Result")
Ids = npt.NDArray[Any]

RUN_BYTES = 1 << 21  # fits into the cache of a core


def scan_documents(
    dataset: MMapIndexedDataset,
    look: Callable[[int, Ids, Int64s], Result],
    on_bytes: Callable[[int], None],
    *,
    ends: Int64s | None = None,
    threads: int = 0,
    tracks: Sequence[str] = (),
    sums: dict[str, str] | None = None,
) -> Generator[Result]:
    """The results of ``look(first, tokens, spans)`` for runs of documents, called in threads.

    ``ends`` are the tokens before each document, of all at the end, where they are known already. A
    run is whole documents of about RUN_BYTES together, or one longer document. ``first`` is the
    number of its first document; document i of the run has the tokens [spans[i, 0], spans[i, 1]),
    in a dtype of ``plain_ids``. With ``tracks`` that say what is trained, there are only trained
    tokens. Checksums of .bin files that are in no manifest are written to ``sums``, by prefix.
    ``on_bytes`` is told the bytes of each run before its result comes, in order; documents without
    tokens at the end of a shard may be in no run. InputError if a file cannot be read or is
    replaced.
    """
    if ends is None:
        ends = document_ends(dataset.sizes, dataset.doc_idx)
    first = 0
    for shard in dataset.shards():
        stop = first + shard.index.header.entries - 1
        bounds = ends[first : stop + 1] - ends[first]
        has_none = sums is not None and shard.manifest is None
        blocks = BlockSums() if has_none else None
        runs = _scan_shard(shard, bounds, first, look, threads=threads, tracks=tracks)
        for block, result in runs:
            if blocks is not None:
                blocks.add(block.data)
            on_bytes(len(block))
            yield result
        shard.check_current("read")
        if blocks is not None and sums is not None:
            sums[shard.prefix] = checksum_of_sums(blocks.finish())
        first = stop


def _scan_shard(
    shard: Shard,
    ends: Int64s,
    first: int,
    look: Callable[[int, Ids, Int64s], Result],
    *,
    threads: int,
    tracks: Sequence[str],
) -> Iterator[tuple[ByteBlock, Result]]:
    width, size = shard.dtype.itemsize, shard.tokens.nbytes
    if not size:
        return
    numbers = np.searchsorted(ends, np.arange(0, size, RUN_BYTES) // width)
    numbers[0] = 0
    numbers = np.unique(numbers)
    numbers = np.append(numbers[ends[numbers] * width < size], len(ends) - 1)
    cuts = ends[numbers] * width

    def look_at(begin: int, block: ByteBlock) -> Result:
        run = int(np.searchsorted(cuts, begin, side="right")) - 1
        bounds = ends[numbers[run] : numbers[run + 1] + 1] - begin // width
        spans = np.stack([bounds[:-1], bounds[1:]], axis=1)
        tokens = plain_ids(block.view(shard.dtype))
        if tracks:
            at = begin // width
            parts = map(are_trained, read_tracks(shard, tracks, at, at + len(tokens)))
            trained = np.concatenate([*parts])
            spans = starts_of(trained)[spans]
            tokens = tokens[trained]
        return look(first + int(numbers[run]), tokens, spans)

    view = shard.tokens if isinstance(shard.tokens, ViewTokens) else None
    path = bin_path(shard.prefix)
    with closing(scan(path, size, look_at, threads=threads, cuts=cuts, tokens=view)) as runs:
        for _, block, result in runs:
            yield block, result


def trained_tracks(dataset: MMapIndexedDataset) -> tuple[str, ...]:
    """The tracks that say which tokens of a dataset are trained; none if all are."""
    return tuple(name for name in TRAINED_TRACKS if name in dataset.tracks)


def as_count(name: str, value: Any) -> int | None:
    """A whole number, given as 1500, 1.5e6 or "1.5M". UsageError."""
    number = _number(name, value, count_of, "a whole number such as 1500 or '1.5M'")
    return None if number is None else int(number)


def as_share(name: str, value: Any) -> float | None:
    """A share, given as 0.1, "0.1" or "10%". UsageError."""
    return _number(name, value, share_of, "a share such as 0.1 or '10%'")


def _number(name: str, value: Any, parse: Callable[[str], float], what: str) -> float | None:
    try:
        if value is None or isinstance(value, int):
            return value
        return parse(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{option(name)} is {brief(value)}; it is {what}") from None


def as_table(name: str, value: Any) -> Any:
    """A table in this process as a pyarrow Table. UsageError."""
    arrow = import_parquet()
    try:
        return table_of(value)
    except (arrow.ArrowException, ValueError, TypeError) as error:
        raise UsageError(
            f"{option(name)}: the table cannot be converted to Arrow: {error}"
        ) from error

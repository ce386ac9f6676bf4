"""The datasets of which views list documents, and how these are numbered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokpack.errors import UsageError
from tokpack.indexed.digests import checksum_of
from tokpack.indexed.fingerprint import shard_fingerprint
from tokpack.indexed.manifest import Manifest
from tokpack.indexed.records import ShardRecord
from tokpack.indexed.shard import open_shard
from tokpack.indexed.shards import piece_prefix
from tokpack.operations.merge import InputShard, MergeInput, check_same

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.indexed.dataset import MMapIndexedDataset
    from tokpack.indexed.shard import Shard

    Int64s = npt.NDArray[np.int64]


class Base:
    """The datasets that lie under those of a view, each once, and where documents are there."""

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
        self.sums: dict[str, str] = {}  # of each .bin that was read and has no manifest
        places: dict[str, int] = {}
        self.records: list[ShardRecord] = []
        for one in self.inputs:
            for shard in one.shards:
                if places.setdefault(shard.record.prefix, len(self.records)) == len(self.records):
                    self.records.append(shard.record)
        self.starts = starts([record.documents for record in self.records])
        self.firsts = starts([dataset.documents for dataset in datasets])
        self.moves = []  # how much larger the number of a document is, for the shards of each input
        for one in self.inputs:
            here = starts([shard.record.documents for shard in one.shards])[:-1]
            places_here = [places[shard.record.prefix] for shard in one.shards]
            self.moves.append((here, self.starts[places_here] - here))

    def shards(self) -> Iterator[Shard]:
        """The shards that have the documents, in the order of ``records``, each opened in turn."""
        for record in self.records:
            yield open_shard(record.prefix)

    def record(self, number: int, prefix: str) -> ShardRecord:
        """What a view says of a shard, as ``prefix``, with all that is known of it by now."""
        one = self.records[number]
        return replace(one, prefix=prefix, xxh3_128=one.xxh3_128 or self.sums.get(one.prefix, ""))

    def numbers(self, dataset: int, documents: Int64s) -> Int64s:
        """The numbers that documents of a dataset, counted from 0, have in the base."""
        if (view := self.datasets[dataset].view) is not None:
            documents = view.numbers[documents].astype(np.int64)
        here, moves = self.moves[dataset]
        if len(moves) == 1:
            documents += moves[0]
        else:
            documents += moves[np.searchsorted(here, documents, side="right") - 1]
        return documents

    def places(self, dataset: int, documents: slice) -> Int64s | slice:
        """``numbers`` of consecutive documents; a slice where they are consecutive there too."""
        _, moves = self.moves[dataset]
        if self.datasets[dataset].view is None and len(moves) == 1:
            return slice(documents.start + int(moves[0]), documents.stop + int(moves[0]))
        return self.numbers(dataset, np.arange(documents.start, documents.stop))


def _merge_input(dataset: MMapIndexedDataset) -> MergeInput:
    """A dataset as the shards that have its documents, each with its full prefix."""
    prefix, view = dataset.path_prefix, dataset.view
    records = dataset.records if view is None else view.base.records
    shards = []
    for number, shard in enumerate(dataset.shards() if view is None else view.base):
        record = records[number] if records else None
        multimodal = shard.index.header.multimodal if len(shard) else None
        shards.append(
            InputShard(_full_record(prefix, shard, record), shard.identity, None, multimodal)
        )
    return MergeInput(prefix, dataset.dtype, shards, dataset.manifest, dataset.pairs)


def _full_record(prefix: str, shard: Shard, record: ShardRecord | None) -> ShardRecord:
    if record is not None and record.fingerprint:
        return replace(record, prefix=piece_prefix(prefix, record))
    manifest = Manifest.find(shard.prefix)
    digest = checksum_of(manifest.bin) if manifest is not None else ""
    tracks = manifest.track_sums if manifest is not None else {}
    return ShardRecord.of(shard, shard.prefix, digest, f"{shard_fingerprint(shard):016x}", tracks)


def starts(counts: Sequence[int]) -> Int64s:
    """The sum of the counts before each, and of all: int64 [n + 1]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

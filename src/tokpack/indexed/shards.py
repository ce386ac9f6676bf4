"""The shards of a dataset: one that is opened, or many that are opened when they are needed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, InputError
from tokpack.indexed.digests import checksum_of
from tokpack.indexed.fingerprint import shard_fingerprint
from tokpack.indexed.format import bin_path, idx_path, storage_dtype
from tokpack.indexed.manifest import Manifest, is_manifest, manifest_path
from tokpack.indexed.records import ShardRecord
from tokpack.indexed.shard import Shard, StoredFiles, find_stored_files, open_shard
from tokpack.indexed.trust import piece_path
from tokpack.stores import exists, is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPEN_SHARDS = 64  # each has two maps


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of an open dataset.

    ``only`` is its one shard; of a virtual dataset it is None, and ``manifest`` has ``records`` of
    those that ``open`` opens, of which at most OPEN_SHARDS stay open. ``prepare`` is told which
    will be opened soon.
    """

    dtype: np.dtype[Any]
    starts: npt.NDArray[np.int64]  # first sequence of each shard, then S
    sequences: int
    open: Callable[[int], Shard]
    prepare: Callable[[range], None] = lambda numbers: None
    only: Shard | None = None
    manifest: Manifest | None = None
    records: tuple[ShardRecord, ...] = ()

    def __iter__(self) -> Iterator[Shard]:
        """The shards in order, each opened when its turn comes."""
        count = len(self.starts) - 1
        for number in range(count):
            if number % OPEN_SHARDS == 0:
                self.prepare(range(number, min(number + OPEN_SHARDS, count)))
            yield self.open(number)

    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens in each sequence of all shards, read-only."""
        lengths = [np.zeros(0, np.int32), *(shard.index.lengths for shard in self)]
        return frozen(np.concatenate(lengths))

    def doc_idx(self) -> npt.NDArray[np.int64]:
        """First sequence of each document of all shards, then S, read-only."""
        pairs = zip(self.starts.tolist(), self, strict=False)
        entries = [shard.index.doc_idx[1:] + start for start, shard in pairs]
        return frozen(np.concatenate([np.zeros(1, np.int64), *entries]))

    @property
    def token_counts(self) -> list[int]:
        """Tokens of each shard."""
        if self.only is not None:
            return [len(self.only.tokens)]
        return [record.tokens for record in self.records]

    def tokens_from(self, begin: int, end: int) -> Iterator[npt.NDArray[Any]]:
        """Tokens [begin, end), or to the last one, in a piece from each shard that has some."""
        counts = self.token_counts
        ends = np.cumsum([0, *counts])
        first = int(np.searchsorted(ends, begin, side="right")) - 1
        for number in range(first, len(counts)):
            start = ends.item(number)
            if start < end and counts[number]:
                yield self.open(number).tokens[max(begin - start, 0) : end - start]


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array that nobody can write to any more."""
    array.flags.writeable = False
    return array


def open_shards(prefix: str, manifest: Manifest | None = None) -> Shards:
    """The shards of the dataset ``prefix``, which is no view. Raises InputError, FormatError.

    ``manifest`` is that of a virtual one.
    """
    if manifest is None:
        shard = open_shard(prefix)
        starts = np.array([0, len(shard)], np.int64)
        return Shards(shard.dtype, starts, len(shard), lambda number: shard, only=shard)
    return recorded_shards(prefix, manifest)


def recorded_shards(prefix: str, manifest: Manifest, *, check: bool = False) -> Shards:
    """The shards that a manifest has records of. Raises FormatError.

    With ``check`` each is compared with its checksum, or its fingerprint, as it is opened.
    """
    records, dtype = manifest.pieces or (), storage_dtype(manifest.dtype)
    counts = [record.sequences for record in records]
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    recorded = _RecordedShards(prefix, manifest, check=check)
    # lru_cache holds no lock while it opens, so threads and forked processes may use it.
    opener, total = lru_cache(OPEN_SHARDS)(recorded.open), int(starts[-1])
    return Shards(
        dtype, starts, total, opener, recorded.look_at, manifest=manifest, records=records
    )


def is_virtual(prefix: str) -> bool:
    """Whether there is a manifest with pieces instead of files, or a view. Raises FormatError."""
    if exists(idx_path(prefix)) or not is_manifest(manifest_path(prefix)):
        return False
    return Manifest.load(prefix).pieces is not None


def piece_prefix(prefix: str, record: ShardRecord) -> str:
    """The prefix of a shard of the virtual dataset ``prefix``. FormatError for one elsewhere."""
    return piece_path(manifest_path(prefix), record.prefix)


class _RecordedShards:
    """The shards of a virtual dataset; of those on a store it is looked once where they are."""

    def __init__(self, prefix: str, manifest: Manifest, *, check: bool) -> None:
        self._prefix, self._records = prefix, manifest.pieces or ()
        self._dtype = storage_dtype(manifest.dtype)
        self._check, self._has_tracks = check, bool(manifest.tracks)
        self._paths = [piece_prefix(prefix, record) for record in self._records]
        self._stored: dict[int, StoredFiles | None] = {}

    def look_at(self, numbers: range) -> None:
        """Look where shards on a store are, all at once. InputError."""
        new = [n for n in numbers if n not in self._stored and is_url(self._paths[n])]
        if new:
            objects = find_stored_files([self._paths[number] for number in new])
            self._stored |= zip(new, objects, strict=True)

    def open(self, number: int) -> Shard:
        """Open a shard. FormatError where it has changed since it was recorded, InputError."""
        record, stored = self._records[number], self._stored.get(number)
        path = self._paths[number]
        where = f"{manifest_path(self._prefix)}: piece {number}, {path},"
        if stored is None and not exists(idx_path(path)):
            raise InputError(f"{where} is missing: put it back, or {self._again} again")
        shard = open_shard(path, stored)
        if shard.dtype != self._dtype:
            raise FormatError(
                f"{where} has ids of {shard.dtype}, expected {self._dtype}: it has changed"
            )
        content = (record.prefix, record.xxh3_128, record.fingerprint, record.tracks)
        current = ShardRecord.of(shard, *content)
        for field in fields(ShardRecord):
            now, then = getattr(current, field.name), getattr(record, field.name)
            if now != then:
                raise FormatError(
                    f"{where} has changed: {field.name} is {now}, expected {then}; "
                    f"{self._again} again"
                )
        if self._check:
            self._check_content(shard, record, where)
        if self._has_tracks:
            self._check_tracks(shard, record, where)
        return shard

    def _check_tracks(self, shard: Shard, record: ShardRecord, where: str) -> None:
        """FormatError where a shard has other tracks than its record."""
        now, then = shard.manifest.track_sums if shard.manifest else {}, record.tracks
        for name in sorted(now.keys() | then.keys()):
            if now.get(name) != then.get(name):
                raise FormatError(
                    f"{where} was replaced: the checksum of its {name} is "
                    f"{now.get(name, 'none')}, expected {then.get(name, 'none')}; put the old one "
                    f"back, or {self._again} again"
                )

    @property
    def _again(self) -> str:
        return "select" if self._check else "merge"

    def _check_content(self, shard: Shard, record: ShardRecord, where: str) -> None:
        """FormatError where a shard of the same counts has another checksum, or fingerprint."""
        manifest = Manifest.find(shard.prefix) if record.xxh3_128 else None
        if manifest is not None:
            what, then, now = "xxh3_128", record.xxh3_128, checksum_of(manifest.bin)
        else:
            what, then = "fingerprint", record.fingerprint
            now = f"{shard_fingerprint(shard):016x}" if then else then
        if now != then:
            raise FormatError(
                f"{where} was replaced: {what} is {now}, expected {then}; put the old one back, "
                f"or {self._again} again"
            )


def check_digest(prefix: str, shard: Shard, record: ShardRecord) -> None:
    """FormatError where the manifest of a shard has another checksum than its record."""
    if not record.xxh3_128 or not exists(manifest_path(shard.prefix)):
        return
    digest = checksum_of(Manifest.load(shard.prefix).bin)
    if digest != record.xxh3_128:
        raise FormatError(
            f"{manifest_path(prefix)}: piece {shard.prefix} has changed: xxh3_128 of "
            f"{bin_path(shard.prefix)} is {digest}, expected {record.xxh3_128}; merge again"
        )


def check_manifest(manifest: Manifest, shard: Shard) -> None:
    """FormatError where the manifest of a shard tells of another one."""
    header = shard.index.header
    empty = manifest.kept_empty
    if "empty" not in manifest.options:
        # A merge of datasets that keep empty documents and of some that do not: the index counts.
        empty = min(max(0, header.entries - 1 - manifest.documents), manifest.empty)
    facts = (
        ("bytes of the .bin", manifest.bin["bytes"], shard.tokens.nbytes),
        ("dtype", manifest.dtype, str(shard.dtype)),
        ("documents", manifest.documents, header.entries - 1 - empty),
        ("sequences", manifest.sequences, len(shard)),
        ("tokens", manifest.tokens, len(shard.tokens)),
    )
    for what, recorded, expected in facts:
        if recorded != expected:
            raise FormatError(
                f"{manifest_path(shard.prefix)}: {what} is {recorded}, expected {expected}, as in "
                f"{shard.index.name}: the files do not belong together; remove the manifest if the "
                "dataset is right"
            )

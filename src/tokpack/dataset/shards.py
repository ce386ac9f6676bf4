"""One ``.bin`` with its ``.idx``, mapped together: an ordinary dataset has one such shard.

A writer that replaces a dataset removes the old .idx, then renames the new .bin, then the new .idx.
So if the same .idx is there before and after the .bin is opened, the two belong together. If not,
the dataset was replaced in between, and both are opened again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack import _core, machine
from tokpack.dataset.format import (
    HEADER_BYTES,
    Index,
    LengthSums,
    bin_path,
    check_all,
    check_ends,
    idx_path,
    parse_header,
    sequence_span,
    starts_of,
    storage_dtype,
    view_index,
)
from tokpack.dataset.manifest import (
    Manifest,
    ShardRecord,
    checksum_of,
    is_manifest,
    manifest_path,
    piece_path,
)
from tokpack.dataset.mapped import LazyTokens, StoredTokens, as_integers, map_file
from tokpack.dataset.track import Values, open_track
from tokpack.errors import FormatError, InputError
from tokpack.storage import StoredObject, copies, exists, identity, is_url, named, stats
from tokpack.storage.disk import cannot_read, pointer_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.storage import Identity


Tokens = npt.NDArray[Any]

PATIENCE_SECONDS = 2.0  # for a writer between removing the old .idx and renaming the new
_PAUSE_SECONDS = 0.002


@dataclass(frozen=True, eq=False)
class Shard:
    """The two mapped files of a dataset. Arrays keep the maps alive, even after the shard is
    closed.

    ``tokens`` are those of all sequences, in the index's dtype; slices are arrays. ``identity`` is
    the .idx's. For a dataset on a store a copy of the .idx is mapped, and slices of the .bin are
    read on demand.
    """

    prefix: str
    index: Index
    tokens: Tokens | LazyTokens
    identity: Identity

    def __len__(self) -> int:
        """Number of sequences."""
        return self.index.header.sequences

    def __iter__(self) -> Iterator[Tokens]:
        return (self.sequence(number) for number in range(len(self)))

    def sequence(self, number: int, track: str | None = None) -> Tokens:
        """Sequence ``number``, in [0, S), or its values in a track."""
        begin, length = sequence_span(self.index, number, self.tokens.nbytes)
        return self.values(track)[begin : begin + length]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the token ids, little endian."""
        return self.index.header.dtype

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest of these files, or None if they have none. InputError, FormatError."""
        manifest = Manifest.find(self.prefix)
        if manifest:
            self.check_current("read")
        return manifest

    @property
    def tracks(self) -> dict[str, np.dtype[Any]]:
        """The tracks that the manifest names, with their dtypes."""
        return {} if self.manifest is None else self.manifest.track_dtypes

    def track(self, name: str) -> Values | LazyTokens:
        """The values of a track, one for each token; slices of them are arrays.

        A ``FilledTrack`` if these files lack it. Raises as ``open_track``.
        """
        if name not in self._opened:
            self._opened[name] = open_track(self, name)
        return self._opened[name]

    def values(self, track: str | None) -> Values | LazyTokens:
        """All tokens, or the values of a track."""
        return self.tokens if track is None else self.track(track)

    def token_file(
        self, track: str | None = None, numbers: npt.NDArray[Any] | None = None
    ) -> _core.TokenFile:
        """The core's object that copies tokens of rows, or their values in a track.

        Only for files on this machine. Weights are copied as bits. With ``numbers`` rows are those
        of a view that lists these sequences.
        """
        values, index, width = self.values(track), self.index, self.dtype.itemsize
        assert isinstance(values, np.ndarray)
        return _core.TokenFile(
            as_integers(values), index.pointers, index.lengths, numbers=numbers, token_bytes=width
        )

    @cached_property
    def _opened(self) -> dict[str, Values | LazyTokens]:
        return {}

    @property
    def idx_bytes(self) -> int:
        """The size of the .idx."""
        return self.identity.size

    def validate(self) -> None:
        """Check every entry of the index, about 5 ns each; FormatError names the first bad one."""
        check_all(self.index, self.tokens.nbytes)

    @property
    def is_current(self) -> bool:
        """Whether these files still have the dataset's name."""
        return identity(idx_path(self.prefix)) == self.identity

    def open_bin(self, doing: str) -> BinaryIO:
        """The .bin that is mapped, as a file to copy from. InputError as ``check_current``."""
        path = bin_path(self.prefix)
        with cannot_read(path):
            file = open(path, "rb", buffering=0)  # noqa: SIM115
        try:
            self.check_current(doing)
        except InputError:
            file.close()
            raise
        return file

    def check_current(self, doing: str) -> None:
        """Raise InputError if the dataset has been replaced; ``doing`` is for the message."""
        if not self.is_current:
            raise InputError(f"{self.prefix}: was replaced while it was {doing}: run again")


StoredFiles = tuple[StoredObject, StoredObject]  # .idx and .bin of a dataset on a store


def open_shard(prefix: str, stored: StoredFiles | None = None) -> Shard:
    """Map both files of a dataset, which belong together even if a writer replaces them meanwhile.

    ``stored`` are its objects on a store, if they were looked up before. InputError if a file is
    missing, FormatError if one is broken.
    """
    if stored is not None:
        return _open_both(prefix, *stored)
    until = machine.clock.now() + PATIENCE_SECONDS
    while True:
        before = identity(idx_path(prefix))
        fault: FormatError | InputError | None = None
        try:
            shard = _open_both(prefix, before)
            if shard.is_current:
                return shard
        except (FormatError, InputError) as error:
            fault = error
        # A fault is real if the .idx did not change meanwhile, or if there is no file at all.
        # Otherwise a writer is replacing the dataset, and the fault may disappear in a moment.
        after = identity(idx_path(prefix))
        whole = before is not None and before == after
        nothing = before is None and after is None and not exists(bin_path(prefix))
        if fault is not None and (whole or nothing or machine.clock.now() > until):
            raise fault
        if machine.clock.now() > until:
            raise InputError(
                f"{prefix}: was replaced several times while it was opened: try again later"
            )
        machine.clock.sleep(_PAUSE_SECONDS)


def _open_both(prefix: str, idx: Identity | None, data: StoredObject | None = None) -> Shard:
    name = idx_path(prefix)
    buffer, identity = map_file(name, idx if isinstance(idx, StoredObject) else None)
    header = parse_header(buffer[:HEADER_BYTES], len(buffer), name)
    index = view_index(buffer, header, name)
    if is_url(prefix):
        stored = StoredTokens(data or named(bin_path(prefix)), header.dtype)
        check_ends(index, stored.nbytes)
        return Shard(prefix, index, stored, identity)
    mapped, _ = map_file(bin_path(prefix))
    if pointer := pointer_in(bytes(mapped[:HEADER_BYTES])):
        raise FormatError(f"{bin_path(prefix)}: this is {pointer}")
    check_ends(index, len(mapped))
    return Shard(prefix, index, np.frombuffer(mapped, header.dtype), identity)


FINGERPRINT_VERSION = 2  # of the fingerprints of documents, and of samples of them
_PROBE = 1 << 16  # tokens at each of three places


def fingerprint(
    lengths: npt.NDArray[np.int32],
    tokens: int,
    tokens_from: Callable[[int, int], Iterable[npt.NDArray[Any]]],
) -> tuple[int, LengthSums]:
    """The fingerprint of a dataset, and sums of its lengths, from one pass over them.

    It covers all lengths but only some tokens, because reading all takes too long. ``lengths`` is
    int32 [S]; ``tokens_from(begin, end)`` returns tokens [begin, end) of all ``tokens``, or up to
    the last one, in pieces.
    """
    state = xxhash.xxh3_64(f"version {FINGERPRINT_VERSION}, {len(lengths)} sequences".encode())
    sums = LengthSums.of(lengths, lambda chunk: state.update(chunk.data))
    last = max(tokens - _PROBE, 0)
    for begin in (0, last // 2, last):
        for piece in tokens_from(begin, begin + _PROBE):
            state.update(piece.astype("<i8").data)
    return state.intdigest(), sums


def shard_fingerprint(shard: Shard) -> int:
    """The fingerprint of a dataset that is this one shard."""
    tokens = shard.tokens
    some = fingerprint(
        shard.index.lengths,
        len(tokens),
        lambda begin, end: [tokens[begin:end]] if len(tokens) else [],
    )
    return some[0]


OPEN_SHARDS = 64  # each has two maps


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a dataset: a single open one, or many that are opened on demand.

    ``only`` is the single shard, or None for a virtual dataset. Then ``manifest`` has the
    ``records`` of shards, ``open`` opens them, and at most OPEN_SHARDS stay open. ``prepare`` is
    told which will be opened soon.
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
        """The shards in order, each opened on demand."""
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
        """Tokens [begin, end), or up to the last one, one piece per shard."""
        counts = self.token_counts
        ends = np.cumsum([0, *counts])
        first = int(np.searchsorted(ends, begin, side="right")) - 1
        for number in range(first, len(counts)):
            start = ends.item(number)
            if start < end and counts[number]:
                yield self.open(number).tokens[max(begin - start, 0) : end - start]


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, made read-only."""
    array.flags.writeable = False
    return array


def only_shard(shard: Shard, manifest: Manifest | None = None) -> Shards:
    """One shard as all of a dataset; for a view with its ``manifest``."""
    starts = np.array([0, len(shard)], np.int64)
    return Shards(
        shard.dtype, starts, len(shard), lambda number: shard, only=shard, manifest=manifest
    )


def recorded_shards(prefix: str, manifest: Manifest, *, check: bool = False) -> Shards:
    """The shards recorded in a manifest. Raises FormatError.

    With ``check`` the checksum or fingerprint of each is compared when it is opened.
    """
    records, dtype = manifest.pieces or (), storage_dtype(manifest.dtype)
    starts = starts_of([record.sequences for record in records])
    paths = [piece_prefix(prefix, record) for record in records]
    objects: dict[int, StoredFiles | None] = {}  # of shards on a store, looked up once
    again = "select" if check else "make the dataset"

    def look_at(numbers: range) -> None:
        """Look up the objects of shards on a store, all at once; their .idx are copied here.

        None for shards that are missing, or replaced meanwhile. InputError.
        """
        new = [n for n in numbers if n not in objects and is_url(paths[n])]
        if not new:
            return
        indices = [idx_path(paths[number]) for number in new]
        # An .idx that is the same before and after belongs to the .bin, see above.
        before, data = stats(indices), stats([bin_path(paths[number]) for number in new])
        for number, idx, one, after in zip(new, before, data, stats(indices), strict=True):
            objects[number] = None
            if idx is not None and one is not None and idx == after:
                objects[number] = idx, one
        copies([pair[0] for number in new if (pair := objects[number])])

    def contents(shard: Shard, record: ShardRecord) -> Iterator[tuple[str, str, str]]:
        """What may differ in a shard with the right counts: name, its value, the record's."""
        if check:
            there = Manifest.find(shard.prefix) if record.xxh3_128 else None
            if there is not None:
                yield "xxh3_128", checksum_of(there.bin), record.xxh3_128
            elif record.fingerprint:
                yield "fingerprint", f"{shard_fingerprint(shard):016x}", record.fingerprint
        if manifest.tracks:
            now, then = shard.manifest.track_sums if shard.manifest else {}, record.tracks
            for name in sorted(now.keys() | then.keys()):
                sums = now.get(name, "none"), then.get(name, "none")
                yield f"the checksum of its {name}", *sums

    # lru_cache holds no lock during the call, so a fork cannot inherit a locked one.
    @lru_cache(OPEN_SHARDS)
    def opened(number: int) -> Shard:
        """A shard. FormatError if it has changed since it was recorded, InputError."""
        record, path, stored = records[number], paths[number], objects.get(number)
        in_view = f"{prefix}: is a view of {path}, which"
        where = in_view if check else f"{manifest_path(prefix)}: piece {number}, {path},"
        if stored is None and not exists(idx_path(path)):
            raise InputError(f"{where} is missing: put it back, or {again} again")
        shard = open_shard(path, stored)
        if shard.dtype != dtype:
            raise FormatError(f"{where} has ids of {shard.dtype}, expected {dtype}: it has changed")
        current = ShardRecord.of(shard, None)
        for name in ("sequences", "documents", "tokens", "bin_bytes", "idx_bytes"):
            now, then = getattr(current, name), getattr(record, name)
            if now != then:
                raise FormatError(
                    f"{where} has changed: {name} is {now}, expected {then}; {again} again"
                )
        for what, found, recorded in contents(shard, record):
            if found != recorded:
                raise FormatError(
                    f"{where} was replaced: {what} is {found}, expected {recorded}; put the old "
                    f"one back, or {again} again"
                )
        return shard

    total = int(starts[-1])
    return Shards(dtype, starts, total, opened, look_at, manifest=manifest, records=records)


def is_virtual(prefix: str) -> bool:
    """Whether there is a manifest with pieces instead of files, or a view. Raises FormatError."""
    if exists(idx_path(prefix)) or not is_manifest(manifest_path(prefix)):
        return False
    return Manifest.load(prefix).pieces is not None


def piece_prefix(prefix: str, record: ShardRecord) -> str:
    """The prefix of a shard of the virtual dataset ``prefix``. FormatError if it is not trusted."""
    return piece_path(manifest_path(prefix), record.prefix)


def check_digest(prefix: str, shard: Shard, record: ShardRecord) -> None:
    """Raise FormatError if the manifest of a shard has another checksum than its record."""
    if not record.xxh3_128 or not exists(manifest_path(shard.prefix)):
        return
    digest = checksum_of(Manifest.load(shard.prefix).bin)
    if digest != record.xxh3_128:
        raise FormatError(
            f"{manifest_path(prefix)}: piece {shard.prefix} has changed: xxh3_128 of "
            f"{bin_path(shard.prefix)} is {digest}, expected {record.xxh3_128}; make the dataset "
            "again"
        )


def check_manifest(manifest: Manifest, shard: Shard) -> None:
    """Raise FormatError if the manifest of a shard describes another one."""
    header = shard.index.header
    empty = manifest.kept_empty
    if "empty" not in manifest.options:
        # In merged datasets only some may index empty documents, so use the index's count.
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

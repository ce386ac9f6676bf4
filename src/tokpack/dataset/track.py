"""Tracks, described in docs/format.md: a value for each token of a .bin."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.dataset.manifest import (
    ROLES,
    TRACK_DTYPES,
    TRACKS,
    TRAINED_TRACKS,
    Manifest,
    PieceSums,
    check_file_digest,
    checksum_of,
    manifest_path,
)
from tokpack.dataset.mapped import LazyTokens, StoredTokens, map_file, scan
from tokpack.errors import FormatError, InputError, OutputError, UsageError
from tokpack.storage import exists, is_url, named
from tokpack.storage.disk import cannot_write
from tokpack.storage.disk.blocks import BlockSums, block_sums, checksum_of_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import BinaryIO

    from tokpack.dataset.manifest import TrackDigest
    from tokpack.dataset.mapped import ByteBlock
    from tokpack.dataset.shards import Shard


Values = npt.NDArray[Any]

_STEP = 1 << 20  # tokens that are read at a time


def track_path(prefix: str | os.PathLike[str], name: str) -> str:
    """The path of the track ``name`` of the dataset ``prefix``."""
    return f"{os.fsdecode(prefix)}.{name}"


def own_tracks(prefix: str) -> list[str]:
    """The paths of the tracks of the dataset ``prefix`` that exist."""
    try:
        manifest = Manifest.find(prefix)
    except (FormatError, InputError):
        return []
    if manifest is None or manifest.pieces is not None:  # pieces have their own tracks
        return []
    return [path for name in manifest.tracks if exists(path := track_path(prefix, name))]


def is_track(path: str) -> bool:
    """Whether a file is a track, according to the manifest beside it."""
    return path in own_tracks(path.rpartition(".")[0])


def check_name(name: str) -> None:
    """Raise UsageError if no track has this name."""
    if name not in TRACK_DTYPES:
        raise UsageError(f"there is no track {name!r}; tracks are {', '.join(TRACK_DTYPES)}")


def count_trained(values: Mapping[str, Values]) -> int:
    """The number of trained tokens, from their values in tracks."""
    return int(np.count_nonzero(are_trained(values)))


def are_trained(values: Mapping[str, Values]) -> npt.NDArray[np.bool_]:
    """Whether tokens are trained, bool [n], from their ``values`` [n] in tracks."""
    trained = np.ones(len(next(iter(values.values()))), bool)
    for name, kind in TRACKS.items():
        if name in values and kind.trained is not None:
            trained &= values[name] >= kind.trained
    return trained


def read_tracks(
    shard: Shard, names: Iterable[str], begin: int = 0, end: int | None = None
) -> Iterator[dict[str, Values]]:
    """The values of tokens [begin, end) of a shard in each track, some at a time.

    For all tokens, checksums are compared too: FormatError if one differs from the manifest.
    Otherwise raises as ``open_track``.
    """
    end = len(shard.tokens) if end is None else end
    tracks = {name: shard.track(name) for name in names}
    sums: dict[str, PieceSums] = {}
    if (begin, end) == (0, len(shard.tokens)) and shard.manifest is not None:
        digests = shard.manifest.tracks.items()
        sums = {
            name: PieceSums(track_path(shard.prefix, name), digest)
            for name, digest in digests
            if name in tracks and checksum_of(digest)
        }
    for at in range(begin, end, _STEP) if tracks else ():
        part = {name: values[at : min(at + _STEP, end)] for name, values in tracks.items()}
        for name, one in sums.items():
            one.add(part[name].view(np.uint8).data)
        yield part
    for one in sums.values():
        one.finish()


def trained_in_files(paths: Mapping[str, str], tokens: int) -> int:
    """The number of trained tokens in the files of tracks. InputError."""
    mapped = {name: _opened(path, TRACK_DTYPES[name])[0] for name, path in paths.items()}
    steps = range(0, tokens, _STEP)
    parts = ({name: one[at : at + _STEP] for name, one in mapped.items()} for at in steps)
    return sum(map(count_trained, parts))


def trained_ends(
    shards: Iterable[Shard], names: Iterable[str], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The number of trained tokens before each of some places in the shards: int64 [n].

    ``ends``, int64 [n], are the numbers of tokens before these places, ascending.
    """
    sums = np.zeros(len(ends), np.int64)
    names, at, total, place = list(names), 0, 0, 0
    for shard in shards:
        for part in read_tracks(shard, names):
            trained = np.cumsum(are_trained(part))
            stop = int(np.searchsorted(ends, at + len(trained), side="right"))
            sums[place:stop] = total + np.concatenate([[0], trained])[ends[place:stop] - at]
            at, total, place = at + len(trained), total + int(trained[-1]), stop
    return sums


def role_name(number: int) -> str:
    """The name of the role with this number in a track; "" for an unknown one."""
    return ROLES[number] if number < len(ROLES) else ""


class FilledTrack(LazyTokens):
    """A track for a shard that lacks it while another has it: all tokens count, no roles."""

    def __init__(self, tokens: Values | LazyTokens, name: str) -> None:
        self.dtype = TRACK_DTYPES[name]
        self._tokens, self._is_labels = tokens, name == "labels"
        self._value = 0 if name == "roles" else 1

    @property
    def nbytes(self) -> int:
        """The bytes that all values would have in a file."""
        return len(self._tokens) * self.dtype.itemsize

    def __getitem__(self, which: slice) -> Values:
        if self._is_labels:
            return self._tokens[which].astype(self.dtype)
        return np.full(len(range(*which.indices(len(self)))), self._value, self.dtype)


def open_track(shard: Shard, name: str) -> Values | LazyTokens:
    """The values of a track of a shard, one for each token: a mapped array, or a lazy one.

    UsageError for an unknown name; InputError if the file is missing, or the shard has been
    replaced; FormatError if it does not have one value for each token.
    """
    check_name(name)
    if name not in shard.tracks:
        return FilledTrack(shard.tokens, name)
    assert shard.manifest is not None
    path, dtype = track_path(shard.prefix, name), TRACK_DTYPES[name]
    try:
        values, size = _opened(path, dtype)
        expected = len(shard.tokens) * dtype.itemsize
        recorded = shard.manifest.tracks[name]["bytes"]
        for has, where in ((recorded, f"{manifest_path(shard.prefix)}: {name}"), (size, path)):
            if has != expected:
                raise FormatError(
                    f"{where}: {has} bytes, expected {expected}, {dtype.itemsize} for each token: "
                    "the files do not belong together"
                )
    except (FormatError, InputError):
        shard.check_current("read")
        raise
    shard.check_current("read")
    return values


def _opened(path: str, dtype: np.dtype[Any]) -> tuple[Values | LazyTokens, int]:
    """The values of a track's file, and its size."""
    if is_url(path):
        stored = StoredTokens(named(path), dtype)
        return stored, stored.nbytes
    buffer, _ = map_file(path, advice="the manifest names it: copy it with the dataset")
    return np.frombuffer(buffer, dtype, len(buffer) // dtype.itemsize), len(buffer)


class NewTracks:
    """Writes the tracks ``names`` of the dataset ``prefix``, to files that ``create`` opens by
    path.

    UsageError for an unknown name.
    """

    def __init__(
        self, prefix: str, names: Iterable[str], create: Callable[[str], BinaryIO]
    ) -> None:
        names = [*names]
        for name in names:
            check_name(name)
        # In the order of TRACK_DTYPES, whatever the order of the request.
        self._new = {
            name: _NewTrack(track_path(prefix, name), TRACK_DTYPES[name], create)
            for name in TRACK_DTYPES
            if name in names
        }
        self._trained = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The tracks, in the order of manifests."""
        return tuple(self._new)

    def append(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append values of the same tokens to each track, in its dtype. OutputError."""
        for name, track in self._new.items():
            track.append(values[name])
        self._trained += count_trained(values)

    def finish(self, tokens: int) -> dict[str, Any]:
        """The entries ``tracks`` and ``trained`` of a manifest, or none without tracks.

        OutputError if a track does not have one value per token.
        """
        if not self._new:
            return {}
        digests = {name: track.finish(tokens) for name, track in self._new.items()}
        return {"tracks": digests, "trained": self._trained}


class _NewTrack:
    def __init__(self, path: str, dtype: np.dtype[Any], create: Callable[[str], BinaryIO]) -> None:
        self._path, self._dtype = path, dtype
        self._file = create(path)
        self._sums = BlockSums()

    def append(self, values: npt.NDArray[Any]) -> None:
        assert values.dtype == self._dtype
        view = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        with cannot_write(self._path):
            self._file.write(view)
        self._sums.add(view)

    def finish(self, tokens: int) -> TrackDigest:
        size, expected = self._sums.at, tokens * self._dtype.itemsize
        if size != expected:
            raise OutputError(
                f"{self._path}: {size} bytes were written, expected {expected}, a value for each "
                "token: an input changed while it was read; run again"
            )
        with cannot_write(self._path):
            self._file.flush()
        checksum = checksum_of_sums(self._sums.finish())
        return {"bytes": size, "xxh3_blocks": checksum, "dtype": str(self._dtype)}


def track_values(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Values in the form of a track: one dimension of its dtype.

    UsageError, without the number of the sequence, for values that TRACKS does not allow.
    """
    array, kind = np.asarray(values).reshape(-1), TRACKS[name]
    if not array.size:
        return np.zeros(0, kind.dtype)
    if array.dtype.kind not in ("biuf" if kind.dtype.kind == "f" else "biu"):
        raise UsageError(f"{name} holds {array.dtype}, expected numbers of {kind.dtype}")
    wrong = ~((array >= kind.least) & (array <= kind.most))  # NaN too
    if wrong.any():
        raise UsageError(f"{name} holds {array[wrong][0]}, expected {kind.allowed}")
    return array.astype(kind.dtype)


def check_tracks(shard: Shard, vocab_size: int | None) -> None:
    """Read and check the tracks of a shard, whose sizes are right.

    FormatError for the first invalid value, a wrong checksum, or a wrong number of trained tokens
    in the manifest. InputError if a track cannot be read.
    """
    manifest = shard.manifest
    if manifest is None:
        return
    for name, digest in manifest.tracks.items():
        path = track_path(shard.prefix, name)
        look, sums, trained = _checker(name, path, vocab_size), bytearray(), 0
        with closing(scan(path, digest["bytes"], look)) as chunks:
            for _, _, (fault, blocks, count) in chunks:
                if fault is not None:
                    raise FormatError(fault)
                sums += blocks
                trained += count
        check_file_digest(path, checksum_of_sums(bytes(sums)), digest)
        alone = [one for one in manifest.tracks if one in TRAINED_TRACKS] == [name]
        if alone and trained != manifest.trained:
            raise FormatError(
                f"{manifest_path(shard.prefix)}: trained is {manifest.trained}, expected "
                f"{trained}, as {path} says"
            )


def _checker(
    name: str, path: str, vocab_size: int | None
) -> Callable[[int, ByteBlock], tuple[str | None, bytes, int]]:
    """Checks a chunk: its first error, the checksums of its blocks, and its trained tokens."""
    dtype, least, most, allowed, *_ = TRACKS[name]
    if name == "labels" and vocab_size is not None:
        most = vocab_size - 1
        allowed = f"an id below the vocabulary size {vocab_size}; negative ones are allowed"

    def look(begin: int, block: ByteBlock) -> tuple[str | None, bytes, int]:
        values = block.view(dtype)
        right, fault = (values >= least) & (values <= most), None
        if not right.all():
            place = int(np.argmin(right))
            fault = (
                f"{path}: byte {begin + place * dtype.itemsize}, token "
                f"{begin // dtype.itemsize + place}: {name} is {values[place]}, expected {allowed}"
            )
        return fault, block_sums(begin, block.data), count_trained({name: values})

    return look

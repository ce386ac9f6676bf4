"""Tracks, described in docs/format.md: values aligned to the tokens of a .bin, one for each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.indexed.digests import PieceSums, check_piece, checksum_of
from tokpack.indexed.manifest import ROLES, TRACK_DTYPES, Manifest, manifest_path
from tokpack.indexed.mapped import map_file
from tokpack.indexed.stored import LazyTokens, StoredTokens
from tokpack.stores import exists, is_url, named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tokpack.indexed.digests import SummedPiece
    from tokpack.indexed.shard import Shard

Values = npt.NDArray[Any]

_STEP = 1 << 20  # tokens looked at at a time


def track_path(prefix: str | os.PathLike[str], name: str) -> str:
    """Where the track ``name`` of the dataset ``prefix`` lies."""
    return f"{os.fsdecode(prefix)}.{name}"


def own_tracks(prefix: str) -> list[str]:
    """The paths of the tracks of the dataset ``prefix`` that are there."""
    try:
        manifest = Manifest.find(prefix)
    except (FormatError, InputError):
        return []
    if manifest is None or manifest.pieces is not None:  # those of pieces lie beside these
        return []
    return [path for name in manifest.tracks if exists(path := track_path(prefix, name))]


def is_track(path: str) -> bool:
    """Whether a file is a track by the manifest beside it, which alone tells that."""
    return path in own_tracks(path.rpartition(".")[0])


def check_name(name: str) -> None:
    """UsageError where no track has such a name."""
    if name not in TRACK_DTYPES:
        raise UsageError(f"no track is called {name!r}: there are {', '.join(TRACK_DTYPES)}")


def count_trained(values: Mapping[str, Values]) -> int:
    """How many of the same tokens are trained, by their values in one track or more."""
    return int(np.count_nonzero(are_trained(values)))


def are_trained(values: Mapping[str, Values]) -> npt.NDArray[np.bool_]:
    """Whether each of some tokens is trained: bool [n], of ``values`` [n] in one track or more."""
    trained = np.ones(len(next(iter(values.values()))), bool)
    for name, least in (("mask", 1), ("labels", 0)):
        if name in values:
            trained &= values[name] >= least
    return trained


def read_tracks(
    shard: Shard, names: Iterable[str], begin: int = 0, end: int | None = None
) -> Iterator[dict[str, Values]]:
    """The values of tokens [begin, end) of a shard in each track, some at a time.

    Where they are of all its tokens, a track that has not the checksum of its manifest is a
    FormatError. Else raises as ``open_track``.
    """
    end = len(shard.tokens) if end is None else end
    tracks = {name: shard.track(name) for name in names}
    sums: dict[str, PieceSums] = {}
    if (begin, end) == (0, len(shard.tokens)) and shard.manifest is not None:
        digests = shard.manifest.tracks.items()
        sums = {n: PieceSums(one) for n, one in digests if n in tracks and checksum_of(one)}

    def check(name: str, pieces: Iterable[SummedPiece]) -> None:
        for piece in pieces:
            check_piece(track_path(shard.prefix, name), piece)

    for at in range(begin, end, _STEP) if tracks else ():
        part = {name: values[at : min(at + _STEP, end)] for name, values in tracks.items()}
        for name, one in sums.items():
            check(name, one.add(part[name].view(np.uint8).data))
        yield part
    for name, one in sums.items():
        check(name, one.finish())


def trained_in_files(paths: Mapping[str, str], tokens: int) -> int:
    """``count_trained`` of tracks of so many tokens, by the paths of their files. InputError."""
    mapped = {name: _opened(path, TRACK_DTYPES[name])[0] for name, path in paths.items()}
    steps = range(0, tokens, _STEP)
    parts = ({name: one[at : at + _STEP] for name, one in mapped.items()} for at in steps)
    return sum(map(count_trained, parts))


def trained_ends(
    shards: Iterable[Shard], names: Iterable[str], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Trained tokens of some shards before each of some places: int64 [n].

    ``ends``, int64 [n], are tokens before each place, none fewer than before the last.
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
    """Who speaks, by a value of the track of roles; "" for what no release of tokpack writes."""
    return ROLES[number] if number < len(ROLES) else ""


class FilledTrack(LazyTokens):
    """The track of a shard that has none, where another has: every token counts, nobody speaks."""

    def __init__(self, tokens: Values | LazyTokens, name: str) -> None:
        self.dtype = TRACK_DTYPES[name]
        self._tokens, self._is_labels = tokens, name == "labels"
        self._value = 0 if name == "roles" else 1

    @property
    def nbytes(self) -> int:
        """Bytes of all values, if they were in a file."""
        return len(self._tokens) * self.dtype.itemsize

    def __getitem__(self, which: slice) -> Values:
        if self._is_labels:
            return self._tokens[which].astype(self.dtype)
        return np.full(len(range(*which.indices(len(self)))), self._value, self.dtype)


def open_track(shard: Shard, name: str) -> Values | LazyTokens:
    """The values of a track of a shard, one for each token: an array, mapped, or a lazy one.

    UsageError for an unknown name; InputError where the file is missing, or the shard was replaced
    meanwhile; FormatError where it has not a value for each token.
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
    """What can be read of a track, and the size of its file."""
    if is_url(path):
        stored = StoredTokens(named(path), dtype)
        return stored, stored.nbytes
    buffer, _ = map_file(path, advice="the manifest names it: copy it with the dataset")
    return np.frombuffer(buffer, dtype, len(buffer) // dtype.itemsize), len(buffer)

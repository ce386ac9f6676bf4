"""Tracks in the making: values as they come, counted and hashed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import OutputError, UsageError
from tokpack.files.blocks import BlockSums, checksum_of_sums
from tokpack.files.durable import cannot_write
from tokpack.indexed.manifest import ROLES, TRACK_DTYPES
from tokpack.indexed.track import check_name, count_trained, track_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import BinaryIO

    from tokpack.indexed.digests import TrackDigest


class NewTracks:
    """The tracks ``names`` of the dataset ``prefix``, to files that ``create`` makes of paths.

    UsageError for an unknown name.
    """

    def __init__(
        self, prefix: str, names: Iterable[str], create: Callable[[str], BinaryIO]
    ) -> None:
        names = list(dict.fromkeys(names))
        for name in names:
            check_name(name)
        # In the order of TRACK_DTYPES, however they are asked for.
        self._new = {
            name: _NewTrack(track_path(prefix, name), TRACK_DTYPES[name], create)
            for name in TRACK_DTYPES
            if name in names
        }
        self._trained = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The tracks, in the order in which manifests have them."""
        return tuple(self._new)

    def append(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append values of the same tokens to each track, in their dtypes. OutputError."""
        for name, track in self._new.items():
            track.append(values[name])
        self._trained += count_trained(values)

    def finish(self, tokens: int) -> dict[str, Any]:
        """What a manifest says of the tracks of so many tokens: ``tracks`` and ``trained``.

        Nothing where there are none. OutputError where a track has another number of values.
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
    """Values as a track has them: one dimension of its dtype.

    UsageError, about no sequence, for those that it cannot have: a mask is of 0 and 1, weights are
    finite, labels integers of int32, roles numbers of ROLES.
    """
    array, dtype = np.asarray(values).reshape(-1), TRACK_DTYPES[name]
    if not array.size:
        return np.zeros(0, dtype)
    if array.dtype.kind not in ("biuf" if name == "weights" else "biu"):
        raise UsageError(f"{name} holds {array.dtype}, expected numbers of {dtype}")
    if name == "weights":
        limit = float(np.finfo(dtype).max)
        wrong = ~(np.abs(array.astype(np.float64)) <= limit)
    else:
        whole = np.iinfo(dtype)
        ranges = {"mask": (0, 1), "roles": (0, len(ROLES) - 1)}
        low, high = ranges.get(name, (whole.min, whole.max))
        wrong = (array < low) | (array > high)
    if wrong.any():
        words = {"mask": "0 and 1", "weights": "finite numbers of float16", "labels": "int32"}
        allowed = words.get(name, f"0 to {len(ROLES) - 1}")
        raise UsageError(f"{name} holds {array[wrong][0]}, expected {allowed}")
    return array.astype(dtype)

"""What is wrong with the tracks of a dataset: their values, and their checksums."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import FormatError
from tokpack.files.blocks import block_sums, checksum_of_sums
from tokpack.indexed.digests import check_file_digest
from tokpack.indexed.manifest import ROLES, TRACK_DTYPES, manifest_path
from tokpack.indexed.scan import scan
from tokpack.indexed.track import count_trained, track_path

if TYPE_CHECKING:
    import numpy.typing as npt

    from tokpack.indexed.scan import ByteBlock
    from tokpack.indexed.shard import Shard


def check_tracks(shard: Shard, vocab_size: int | None) -> None:
    """Read the tracks of a shard, whose sizes are right.

    FormatError for the first value that a track cannot have, for a checksum, and where the manifest
    tells of another number of trained tokens. InputError where one cannot be read.
    """
    manifest = shard.manifest
    if manifest is None:
        return
    for name, digest in manifest.tracks.items():
        path = track_path(shard.prefix, name)
        check, sums, trained = _Check(name, path, vocab_size), bytearray(), 0
        with closing(scan(path, digest["bytes"], check)) as chunks:
            for _, _, (fault, blocks, count) in chunks:
                if fault is not None:
                    raise FormatError(fault)
                sums += blocks
                trained += count
        check_file_digest(path, checksum_of_sums(bytes(sums)), digest)
        alone = manifest.tracks.keys() - {"weights", "roles"} == {name}  # so that it says it all
        if alone and trained != manifest.trained:
            raise FormatError(
                f"{manifest_path(shard.prefix)}: trained is {manifest.trained}, expected "
                f"{trained}, as {path} says"
            )


class _Check:
    """Looks at a chunk: the first fault in it, the sums of its blocks, and its trained tokens."""

    def __init__(self, name: str, path: str, vocab_size: int | None) -> None:
        self._name, self._path = name, path
        self._dtype = TRACK_DTYPES[name]
        limits = {"mask": 2, "weights": None, "labels": vocab_size, "roles": len(ROLES)}
        self._limit = limits[name]
        self._expected = {
            "mask": "0 or 1",
            "weights": "a finite number",
            "labels": f"an id of the vocabulary, which has {vocab_size}, or less than 0",
            "roles": f"0 to {len(ROLES) - 1}",
        }[name]

    def __call__(self, begin: int, block: ByteBlock) -> tuple[str | None, bytes, int]:
        values = block.view(self._dtype)
        wrong, fault = self._wrong(values), None
        if wrong.any():
            place = int(np.argmax(wrong))
            fault = (
                f"{self._path}: byte {begin + place * self._dtype.itemsize}, token "
                f"{begin // self._dtype.itemsize + place}: {self._name} is {values[place]}, "
                f"expected {self._expected}"
            )
        return fault, block_sums(begin, block.data), count_trained({self._name: values})

    def _wrong(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        wrong = np.zeros(len(values), bool)
        if self._name == "weights":
            wrong |= ~np.isfinite(values)
        elif self._limit is not None:
            wrong |= values >= self._limit
        return wrong

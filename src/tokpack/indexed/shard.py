"""One ``.bin`` with its ``.idx``, mapped together: all that an ordinary dataset is made of.

A writer that replaces a dataset removes the old .idx, then gives the new .bin its name, then the
new .idx. So a .bin belongs to an .idx that had its name before the .bin was opened and has it still
afterwards; what was opened across a replacement is opened again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack import _core, machine
from tokpack.errors import FormatError, InputError
from tokpack.files import durable
from tokpack.files.mistaken import pointer_in
from tokpack.indexed.format import (
    HEADER_BYTES,
    Index,
    bin_path,
    check_all,
    check_ends,
    idx_path,
    parse_header,
    sequence_span,
    view_index,
)
from tokpack.indexed.manifest import Manifest
from tokpack.indexed.mapped import map_file
from tokpack.indexed.stored import LazyTokens, StoredTokens, as_integers
from tokpack.indexed.track import Values, open_track
from tokpack.stores import StoredObject, copies, exists, identity, is_url, named, stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.stores import Identity

Tokens = npt.NDArray[Any]

PATIENCE_SECONDS = 2.0  # for a writer that has removed one .idx and not yet named the next
_PAUSE_SECONDS = 0.002


@dataclass(frozen=True, eq=False)
class Shard:
    """The mapped files. Arrays hold the maps, so these live as long as any array handed out.

    ``tokens`` are all of them, one sequence after the other, in the index's dtype; slices of them
    are arrays. ``identity`` is that of the .idx. Of a dataset on a store a copy of the .idx is
    mapped, and slices of the .bin are read when they are taken.
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
        """Sequence ``number``, in [0, S), or the values that a track has of it."""
        begin, length = sequence_span(self.index, number, self.tokens.nbytes)
        return self.values(track)[begin : begin + length]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the token ids, little endian."""
        return self.index.header.dtype

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest of these files; None where they have none. InputError, FormatError."""
        manifest = Manifest.find(self.prefix)
        if manifest is not None:
            self.check_current("read")
        return manifest

    @property
    def tracks(self) -> dict[str, np.dtype[Any]]:
        """The tracks that the manifest names, with their dtypes."""
        return {} if self.manifest is None else self.manifest.track_dtypes

    def track(self, name: str) -> Values | LazyTokens:
        """The values of a track, one for each token, of which slices are arrays.

        A ``FilledTrack`` where these files have none. Raises as ``open_track``.
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
        """What copies tokens of rows, or their values in a track (of weights the bits).

        Of files on this machine. With ``numbers`` rows are of a view, which lists these sequences.
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
        """Whether the dataset's name still means these files."""
        return identity(idx_path(self.prefix)) == self.identity

    def open_bin(self, doing: str) -> BinaryIO:
        """The .bin that is mapped, as a file to copy from. InputError as ``check_current``."""
        path = bin_path(self.prefix)
        with durable.cannot_read(path):
            file = open(path, "rb", buffering=0)  # noqa: SIM115
        try:
            self.check_current(doing)
        except InputError:
            file.close()
            raise
        return file

    def check_current(self, doing: str) -> None:
        """InputError where other files have the dataset's name by now; ``doing`` says meanwhile."""
        if not self.is_current:
            raise InputError(f"{self.prefix}: was replaced while it was {doing}: run again")


class StoredFiles(NamedTuple):
    """The objects of a dataset on a store, which belong together."""

    idx: StoredObject
    bin: StoredObject


def find_stored_files(prefixes: Sequence[str]) -> list[StoredFiles | None]:
    """The objects of datasets on stores, whose .idx are copied to this machine, many at a time.

    None where they are missing, or replaced meanwhile. InputError.
    """
    indices = [idx_path(prefix) for prefix in prefixes]
    before, data = stats(indices), stats([bin_path(prefix) for prefix in prefixes])
    files = [
        StoredFiles(idx, one) if idx is not None and one is not None and idx == after else None
        for idx, one, after in zip(before, data, stats(indices), strict=True)
    ]
    copies([one.idx for one in files if one is not None])
    return files


def open_shard(prefix: str, stored: StoredFiles | None = None) -> Shard:
    """Map both files of a dataset, which belong together even while a writer replaces them.

    Objects that were looked up before, ``stored``, are not asked for again. InputError where a
    file is missing, FormatError where one is broken.
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
        after = identity(idx_path(prefix))
        whole = before is not None and before == after
        nothing = before is None and after is None and not exists(bin_path(prefix))
        if fault is not None and (whole or nothing or machine.clock.now() > until):
            raise fault
        if machine.clock.now() > until:
            raise InputError(f"{prefix}: is replaced again and again while it is opened: try later")
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

"""Where the tracks of a piece go: into memory, until their place in the output is known, or a file.

A piece's place is known when all pieces before it have told their sizes. So most pieces wait for a
moment in their worker's memory and are written once, where they belong, with checksums taken while
the bytes are in the cache. What would wait too long, or takes too much memory, goes to a *spill*,
files of its own in the work folder, and is copied from there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.encoding.folder import create_own, open_own
from tokpack.encoding.piece import SPILL, Stored
from tokpack.files.blocks import BlockSums, file_sums, read_blocks, spans
from tokpack.files.durable import cannot_write, start_writeback

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from tokpack.encoding.folder import WorkFolder

_FIRST_BYTES = 1 << 20  # of the memory of a track


class TrackFiles:
    """The open files of all tracks, under one name in the work folder.

    A file takes one writer at a time, since the system locks it for each call. Maps of it are no
    way around that: docs/performance.md has the measure.
    """

    def __init__(
        self, folder: WorkFolder, name: str, tracks: Sequence[str], *, new: bool = False
    ) -> None:
        self.name = name
        self.paths = [folder(f"{name}.{track}") for track in tracks]
        self.files: list[int] = []
        try:
            for path in self.paths:
                with cannot_write(path):
                    self.files.append(create_own(path) if new else open_own(path, os.O_RDWR))
        except BaseException:
            self.close()
            raise

    def write(self, track: int, data: memoryview, at: int) -> None:
        """Write bytes at an offset. Raises OutputError."""
        with cannot_write(self.paths[track]):
            while len(data):
                count = os.pwrite(self.files[track], data, at)
                data, at = data[count:], at + count

    def read(self, track: int, begin: int, end: int) -> memoryview | None:
        """Bytes [begin, end) of a block; None where the file is shorter. Raises OutputError."""
        with cannot_write(self.paths[track]):
            data = next(read_blocks(self.files[track], begin, end), memoryview(b""))
        return data if len(data) == end - begin else None

    def close(self) -> None:
        """Close the files, without making them durable."""
        for file in self.files:
            os.close(file)
        self.files = []


class Tracks:
    """The tracks of a piece in the making, and until they are stored; used again for the next.

    ``growing`` is called before memory takes an array, with its bytes.
    """

    def __init__(self, count: int, growing: Callable[[Tracks, int], None]) -> None:
        self.buffers = [np.empty(0, np.uint8) for _ in range(count)]
        self._growing = growing
        self.begin()

    def begin(self) -> None:
        """Begin another piece, in memory."""
        self.sizes = [0] * len(self.buffers)
        self._files: TrackFiles | None = None
        self._begins: tuple[int, ...] = ()
        self._sums: list[BlockSums] = []

    @property
    def is_stored(self) -> bool:
        """Whether they go to files."""
        return self._files is not None

    def write(self, track: int, values: npt.NDArray[Any]) -> None:
        """Append an array to a track. Raises OutputError."""
        if not values.size:
            return
        data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        if self._files is None:
            self._growing(self, len(data))
        if self._files is None:
            self._put(track, data)
        else:
            self._write(self._files, track, data.data)
        self.sizes[track] += len(data)

    def store(self, files: TrackFiles, begins: Sequence[int]) -> None:
        """Write what is in memory to files, at an offset of each; what comes goes there too."""
        self._files, self._begins = files, tuple(begins)
        self._sums = [BlockSums(begin) for begin in begins]
        for track, (begin, size) in enumerate(zip(begins, self.sizes, strict=True)):
            data = self.buffers[track][:size].data
            for at, stop in spans(begin, begin + size):  # a block is hashed while it is hot
                self._write(files, track, data[at - begin : stop - begin])

    def finish(self) -> Stored:
        """Where the piece lies, which is complete and stored."""
        files = self._files
        assert files is not None
        for track, (begin, size) in enumerate(zip(self._begins, self.sizes, strict=True)):
            start_writeback(files.files[track], begin, size)
        if files.name.startswith(SPILL):
            files.close()
        return Stored(files.name, self._begins, tuple(sums.finish() for sums in self._sums))

    def _write(self, files: TrackFiles, track: int, data: memoryview) -> None:
        at = self._sums[track].at
        self._sums[track].add(data)
        files.write(track, data, at)

    def _put(self, track: int, data: npt.NDArray[np.uint8]) -> None:
        buffer, at = self.buffers[track], self.sizes[track]
        end = at + len(data)
        if end > len(buffer):
            grown = np.empty(max(end, 2 * len(buffer), _FIRST_BYTES), np.uint8)
            grown[:at] = buffer[:at]
            self.buffers[track] = buffer = grown
        buffer[at:end] = data


def copy_piece(
    source: TrackFiles,
    stored: Stored,
    sizes: Sequence[int],
    target: TrackFiles,
    begins: Sequence[int],
) -> Stored | None:
    """Copy the tracks of a piece; None where they are not what was stored. Raises OutputError."""
    sums = []
    for track, (begin, size) in enumerate(zip(stored.begins, sizes, strict=True)):
        had, has = BlockSums(begin), BlockSums(begins[track])
        with cannot_write(source.paths[track]):
            for data in read_blocks(source.files[track], begin, begin + size):
                had.add(data)
                target.write(track, data, has.at)
                has.add(data)
        if had.at != begin + size or had.finish() != stored.sums[track]:
            return None
        start_writeback(target.files[track], begins[track], size)
        sums.append(has.finish())
    return Stored(target.name, tuple(begins), tuple(sums))


def is_whole(files: TrackFiles, stored: Stored, sizes: Sequence[int]) -> bool:
    """Whether the tracks of a piece are what was stored. Raises OutputError."""
    for track, (begin, size) in enumerate(zip(stored.begins, sizes, strict=True)):
        with cannot_write(files.paths[track]):
            sums = file_sums(files.files[track], begin, begin + size)
        if sums != stored.sums[track]:
            return False
    return True

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
from tokpack.encoding.piece import JOINED, Stored
from tokpack.files.blocks import BlockSums, read_blocks, spans, sums_of
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
    """The tracks of a piece in the making, and until they are stored.

    ``growing`` is called before memory takes an array, with its bytes.
    """

    def __init__(self, memory: TrackBuffers, growing: Callable[[Tracks, int], None]) -> None:
        self.sizes = [0] * len(memory.buffers)
        self._begins: tuple[int, ...] = ()
        self._memory: TrackBuffers | None = memory
        self._growing = growing
        self._files: TrackFiles
        self._sums: list[BlockSums]

    @property
    def is_stored(self) -> bool:
        """Whether they go to files."""
        return self._memory is None

    @property
    def in_memory(self) -> int:
        """Bytes that wait in memory."""
        return 0 if self._memory is None else sum(self.sizes)

    def write(self, track: int, values: npt.NDArray[Any]) -> None:
        """Append an array to a track. Raises OutputError."""
        if not values.size:
            return
        data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        if self._memory is not None:
            self._growing(self, len(data))
        if self._memory is None:
            self._write(track, data.data)
        else:
            self._memory.put(track, self.sizes[track], data)
        self.sizes[track] += len(data)

    def store(self, files: TrackFiles, begins: Sequence[int]) -> None:
        """Write what is held to files, where each track begins at an offset; the rest follows."""
        memory, self._memory = self._memory, None
        assert memory is not None
        self._files, self._begins = files, tuple(begins)
        self._sums = [BlockSums(begin) for begin in begins]
        for track, size in enumerate(self.sizes):
            held = memory.buffers[track][:size].data
            begin = begins[track]
            for at, stop in spans(begin, begin + size):  # a block is hashed while it is hot
                self._write(track, held[at - begin : stop - begin])

    def finish(self) -> Stored:
        """Where the piece lies, which is complete and stored."""
        files = self._files
        for track, (begin, size) in enumerate(zip(self._begins, self.sizes, strict=True)):
            start_writeback(files.files[track], begin, size)
        if files.name != JOINED:
            files.close()
        return Stored(files.name, self._begins, tuple(sums.finish() for sums in self._sums))

    def _write(self, track: int, data: memoryview) -> None:
        at = self._sums[track].at
        self._sums[track].add(data)
        self._files.write(track, data, at)


class TrackBuffers:
    """The memory in which the tracks of one piece wait; used again for the next."""

    def __init__(self, tracks: int) -> None:
        self.buffers = [np.empty(0, np.uint8) for _ in range(tracks)]

    def put(self, track: int, at: int, data: npt.NDArray[np.uint8]) -> None:
        """Put bytes at an offset of a track."""
        buffer, end = self.buffers[track], at + len(data)
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
            sums = sums_of(files.files[track], begin, begin + size)
        if sums != stored.sums[track]:
            return False
    return True

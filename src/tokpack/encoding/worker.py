"""A worker: does the tasks of a run one by one, in its own process or the run's."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections import deque
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tokpack.apart import Limits
from tokpack.counts import CHOSEN
from tokpack.encoding import coordinator
from tokpack.encoding.folder import create_own, open_own
from tokpack.encoding.part import PartEncoder
from tokpack.encoding.piece import LINES, RECORDS, SPILL, Piece, Stored
from tokpack.errors import OutputError, RecordError
from tokpack.progress import Progress
from tokpack.sources import LineBlock, LineStream, count_newlines
from tokpack.storage.disk import cannot_write, start_writeback
from tokpack.storage.disk.blocks import BlockSums, block_sum, file_sums, read_blocks, spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from tokpack.encoding.piece import Job, PieceId
    from tokpack.progress import Show
    from tokpack.sources import DocumentBatch, Source


# The tracks of a piece stay in memory until their place in the output is known.
#
# The place of a piece is known when the sizes of all earlier pieces are known. So most pieces wait
# for a moment in the memory of their worker, and are then written once, in place, and hashed while
# they are in the cache. A piece that would wait too long, or is too large, goes to a *spill*: files
# of its own in the work folder, from which it is copied later.

_FIRST_BYTES = 1 << 20  # the first size of a track's memory


class TrackFiles:
    """The open files of all tracks, under one name in the work folder.

    Only one worker at a time can write to a file, because the system locks it during each call.
    Mapping it is no faster, as benchmarks/lab-book.md shows.
    """

    def __init__(self, job: Job, name: str, *, new: bool = False) -> None:
        self.name = name
        self.paths = [job.folder(f"{name}.{track}") for track in job.tracks]
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
        """Bytes [begin, end) of a block, or None if the file is shorter. Raises OutputError."""
        with cannot_write(self.paths[track]):
            data = next(read_blocks(self.files[track], begin, end), memoryview(b""))
        return data if len(data) == end - begin else None

    def close(self) -> None:
        """Close the files, without making them durable."""
        for file in self.files:
            os.close(file)
        self.files = []


class Tracks:
    """The tracks of a piece, until they are stored; then reused for the next piece.

    ``growing`` is called with these tracks and a number of bytes before they need so much more
    memory; it may ``store`` them.
    """

    def __init__(self, count: int, growing: Callable[[Tracks, int], None]) -> None:
        self.buffers = [np.empty(0, np.uint8) for _ in range(count)]
        self._growing = growing
        self.begin()

    def begin(self) -> None:
        """Begin another piece in memory, in the buffers of the last one."""
        self.sizes = [0] * len(self.buffers)
        self._files: TrackFiles | None = None
        self._begins: tuple[int, ...] = ()
        self._sums: list[BlockSums] = []

    def write(self, track: int, values: npt.NDArray[Any]) -> None:
        """Append an array to a track. Raises OutputError."""
        if not values.size:
            return
        data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        if self._files is None:
            self._growing(self, len(data))
        if self._files is None:  # checked again: ``growing`` may have stored the piece
            buffer, at = self.buffers[track], self.sizes[track]
            end = at + len(data)
            if end > len(buffer):
                grown = np.empty(max(end, 2 * len(buffer), _FIRST_BYTES), np.uint8)
                grown[:at] = buffer[:at]
                self.buffers[track] = buffer = grown
            buffer[at:end] = data
        else:
            self._write(self._files, track, data.data)
        self.sizes[track] += len(data)

    def store(self, files: TrackFiles, begins: Sequence[int]) -> None:
        """Write the tracks to files at these offsets; later arrays are written there at once."""
        self._files, self._begins = files, tuple(begins)
        self._sums = [BlockSums(begin) for begin in begins]
        for track, (begin, size) in enumerate(zip(begins, self.sizes, strict=True)):
            data = self.buffers[track][:size].data
            for at, stop in spans(begin, begin + size):  # hash each block while it is in the cache
                self._write(files, track, data[at - begin : stop - begin])

    def finish(self) -> Stored | None:
        """Where the complete piece is stored; None if it is in memory."""
        files = self._files
        if files is None:
            return None
        for track, (begin, size) in enumerate(zip(self._begins, self.sizes, strict=True)):
            start_writeback(files.files[track], begin, size)
        if files.name.startswith(SPILL):
            files.close()
        return Stored(files.name, self._begins, tuple(sums.finish() for sums in self._sums))

    def _write(self, files: TrackFiles, track: int, data: memoryview) -> None:
        at = self._sums[track].at
        self._sums[track].add(data)
        files.write(track, data, at)


def is_whole(files: TrackFiles, stored: Stored, sizes: Sequence[int]) -> bool:
    """Whether the stored tracks of a piece still match its checksums. OutputError."""
    for track, (begin, size) in enumerate(zip(stored.begins, sizes, strict=True)):
        with cannot_write(files.paths[track]):
            sums = file_sums(files.files[track], begin, begin + size)
        if sums != stored.sums[track]:
            return False
    return True


HELD_BYTES = 48 << 20  # a larger piece goes to a spill
_HELD_PIECES = 2  # in memory, including the one being made


class RunLink(Protocol):
    """A worker's connection to the run."""

    def send(self, event: coordinator.Event) -> None:
        """Tell the run what has happened."""

    def poll(self) -> coordinator.ToWorker | None:
        """The next message, or None if there is none yet."""

    def wait(self) -> coordinator.ToWorker | None:
        """The next message, or None at the end of the run."""


class Slots:
    """Shared memory of all processes of a run, for segments of streams."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self._memory = memoryview(mmap.mmap(-1, max(count * size, 1)))

    def __getitem__(self, slot: int) -> memoryview:
        return self._memory[slot * self.size : (slot + 1) * self.size]


class Worker:
    """Does the tasks that come over ``link``, one by one.

    ``slots`` is the memory for segments of streams, if there are several workers.
    """

    def __init__(
        self, job: Job, counters: Counters, link: RunLink, *, slots: Slots | None = None
    ) -> None:
        self._job = job
        self._slots = slots
        self._link = link
        self._tasks: deque[coordinator.Task] = deque()
        self._granted: deque[int] = deque()  # slots for the next segments of the stream
        self._at: PieceId = (0, 0)  # the piece that was begun last
        self._encoder = PartEncoder(job, counters, self._attend)
        self._joined: list[TrackFiles] = []  # by file
        self._free: list[Tracks] = []  # for the next pieces
        self._held: dict[PieceId, Tracks] = {}  # complete pieces without a known place
        try:
            for name in job.joined:
                self._joined.append(TrackFiles(job, name))
        except BaseException:
            self.close()
            raise

    def serve(self) -> None:
        """Do the tasks that arrive, until the run ends."""
        while True:
            while not self._tasks:
                message = self._link.wait()
                if message is None:
                    return
                self._take(message)
            self._link.send(self._do(self._tasks.popleft()))

    def close(self) -> None:
        """Close the files."""
        for files in self._joined:
            files.close()

    def _file_of(self, piece: PieceId) -> TrackFiles:
        """The joined files that a piece belongs to."""
        return self._joined[self._job.file_of(piece[0])]

    def _attend(self) -> None:
        """Handle messages in the middle of a task; new tasks are queued."""
        while (message := self._link.poll()) is not None:
            self._take(message)

    def _take(self, message: coordinator.ToWorker) -> None:
        if isinstance(message, coordinator.UseSlot):
            self._granted.append(message.slot)
        elif not isinstance(message, coordinator.StorePiece) or message.stored is not None:
            self._tasks.append(message)
        # A piece that is no longer held was spilled while this message was on its way. The run will
        # learn that from an event, and then have the piece copied from the spill.
        elif message.id in self._held:
            self._move(message.id, self._file_of(message.id), message.begins)

    def _do(self, task: coordinator.Task) -> coordinator.TaskDone:
        if isinstance(task, coordinator.StorePiece):
            self._copy(task)
        elif isinstance(task, coordinator.SumBlocks):
            return coordinator.TaskDone(sums=tuple(map(self._sum, task.blocks)))
        else:
            try:
                self._encode(task)
            except RecordError as error:
                return coordinator.TaskDone(failed=(self._at, error))
        return coordinator.TaskDone()

    # -- encoding -------------------------------------------------------------------------------

    def _encode(
        self, task: coordinator.EncodePart | coordinator.Segment | coordinator.EncodeDocuments
    ) -> None:
        if isinstance(task, coordinator.EncodePart):
            if self._job.parts[task.number].kind == "stream":
                self._encode_stream(task)
                return
            piece, tracks = self._begin((task.number, 0), task.at)
            self._encoder.encode_part(piece, tracks, task.limit)
        else:
            piece, tracks = self._begin((task.number, task.segment), None)
            if isinstance(task, coordinator.Segment):
                assert self._slots is not None
                blocks = _blocks_in(self._slots[task.slot], task.blocks)
                self._encoder.encode_blocks(piece, tracks, blocks, task.line, None)
            else:
                self._encoder.encode_documents(piece, tracks, task)
        self._complete(piece, tracks)

    def _encode_stream(self, task: coordinator.EncodePart) -> None:
        """Read a stream; encode its segments here, or hand them to idle workers."""
        part = self._job.parts[task.number]
        source = self._job.sources[part.source]
        stream = LineStream(source, part.end, self._job.options.max_document_bytes)
        self._granted.clear()  # leftover slots of an earlier stream
        lines = segment = 0  # before the segment; its number
        at, limit = task.at, task.limit
        with closing(stream):
            for segment, blocks in enumerate(stream):
                if segment in task.skip:
                    lines += sum(_lines(source, block) for block in blocks)
                    continue
                self._attend()
                kept, shared = self._share(task.number, segment, blocks, lines)
                begins, at = at, None  # the place of the next piece is known only to the run
                if kept is None:
                    lines += shared
                    continue
                piece, tracks = self._begin((task.number, segment), begins)
                self._encoder.encode_blocks(piece, tracks, kept, lines, limit)
                self._complete(piece, tracks)
                lines += piece.total(LINES)
                if limit is not None:
                    limit -= piece.total(RECORDS)
                    if limit <= 0:
                        break
            source.check_unchanged()
            sums = stream.block_checksums()
            self._link.send(coordinator.StreamEnd(task.number, segment + 1, sums))

    def _share(
        self, number: int, segment: int, blocks: Iterator[LineBlock], line: int
    ) -> tuple[Iterator[LineBlock] | None, int]:
        """Put a segment into a slot for another worker. Returns (None, the number of its lines).

        Returns (its blocks, 0) if there is no slot, or if the segment does not fit into it.
        """
        if not self._granted:
            return blocks, 0
        assert self._slots is not None
        slot = self._granted.popleft()
        memory = self._slots[slot]
        source = self._job.sources[self._job.parts[number].source]
        taken: list[tuple[int, int]] = []
        lines = end = 0
        for block in blocks:
            if block.too_long or end + block.length > self._slots.size:
                self._granted.appendleft(slot)
                return chain(_blocks_in(memory, taken), [block], blocks), 0
            memory[end : end + block.length] = block.data
            taken.append((block.length, block.stored))
            end += block.length
            lines += _lines(source, block)
        self._link.send(coordinator.Segment(number, segment, slot, tuple(taken), line))
        return None, lines

    # -- pieces and their places ----------------------------------------------------------------

    def _begin(self, piece: PieceId, at: tuple[int, ...] | None) -> tuple[Piece, Tracks]:
        """A new piece and its tracks; ``at`` are their offsets in the joined files, if known."""
        self._at = piece
        # A worker must not wait for places: an earlier piece elsewhere may take long. So it makes
        # room by spilling the piece that it has held longest.
        if not self._free and len(self._held) >= _HELD_PIECES:
            first = next(iter(self._held))
            self._move(first, *self._new_spill(first))
        tracks = self._free.pop() if self._free else Tracks(len(self._job.tracks), self._overflow)
        tracks.begin()
        if at is not None:
            tracks.store(self._file_of(piece), at)
        return Piece.empty(self._job, *piece), tracks

    def _complete(self, piece: Piece, tracks: Tracks) -> None:
        """Report that a piece is complete."""
        piece.sizes = tuple(tracks.sizes)
        piece.stored = tracks.finish()
        if piece.stored is None:
            self._held[piece.id] = tracks
        else:
            self._free.append(tracks)
        self._link.send(piece)

    def _move(self, piece: PieceId, files: TrackFiles, begins: Sequence[int]) -> None:
        """Write a piece that waits in memory to files, and report it."""
        tracks = self._held.pop(piece)
        tracks.store(files, begins)
        self._free.append(tracks)
        stored = tracks.finish()
        assert stored is not None
        self._link.send(coordinator.PieceStored(piece, stored))

    def _overflow(self, tracks: Tracks, more: int) -> None:
        """Spill an unfinished piece if it would take too much memory."""
        if sum(tracks.sizes) + more > HELD_BYTES:
            tracks.store(*self._new_spill(self._at))

    def _new_spill(self, piece: PieceId) -> tuple[TrackFiles, tuple[int, ...]]:
        """New files for a piece without a place, and the offsets of its tracks in them."""
        name = "{}{}-{}".format(SPILL, *piece)
        return TrackFiles(self._job, name, new=True), (0,) * len(self._job.tracks)

    def _copy(self, task: coordinator.StorePiece) -> None:
        """Copy a piece from its spill into place. OutputError if the spill has changed."""
        stored, target, sums = task.stored, self._file_of(task.id), []
        assert stored is not None
        with closing(TrackFiles(self._job, stored.place)) as spill:
            for track, (begin, size) in enumerate(zip(stored.begins, task.sizes, strict=True)):
                had, has = BlockSums(begin), BlockSums(task.begins[track])
                with cannot_write(spill.paths[track]):
                    for data in read_blocks(spill.files[track], begin, begin + size):
                        had.add(data)
                        target.write(track, data, has.at)
                        has.add(data)
                if had.at != begin + size or had.finish() != stored.sums[track]:
                    raise _not_as_written(f"{spill.paths[0]} and the files beside it")
                start_writeback(target.files[track], task.begins[track], size)
                sums.append(has.finish())
        stored = Stored(target.name, task.begins, tuple(sums))
        self._link.send(coordinator.PieceStored(task.id, stored))

    def _sum(self, block: coordinator.SharedBlock) -> bytes:
        """The checksum of a block; OutputError if the block is not what its pieces wrote.

        The block is read back, but hashing it alone would accept damage: first each share is
        compared with the checksum computed when its piece was encoded.
        """
        begin, end = block.shares[0][0], block.shares[-1][1]
        files = self._joined[block.file]
        data = files.read(block.track, begin, end)
        if data is None or any(
            block_sum(data[first - begin : last - begin]) != digest
            for first, last, digest in block.shares
        ):
            raise _not_as_written(f"bytes {begin} to {end} of {files.paths[block.track]}")
        return block_sum(data)


def _not_as_written(what: str) -> OutputError:
    return OutputError(
        f"{what} are not those that were written: something else writes there, or the disk or the "
        "memory fails; run again, what is damaged is made again"
    )


def _lines(source: Source, block: LineBlock) -> int:
    """The number of lines in a block; the last line of a file may have no newline."""
    if block.too_long:
        return 1
    data = block.data
    return count_newlines(data) + (bool(len(data)) and data[-1] != 0x0A)


def _blocks_in(memory: memoryview, blocks: Sequence[tuple[int, int]]) -> Iterator[LineBlock]:
    """The blocks of lines in a slot."""
    begin = 0
    for length, stored in blocks:
        yield LineBlock(memory[begin : begin + length], length, stored=stored)
        begin += length


# Workers count their work in memory shared with the run. There is no lock, so counts may be a
# moment old; only the display depends on them.

_SHOWN_SECONDS = 0.2  # between two snapshots
# What a worker counts, in this order, with names from SOURCE_COLUMNS and KEY_COLUMNS.
_NAMES = (
    *("bytes_read", "text_bytes", "documents", "tokens", "rejected"),
    *CHOSEN,
)
_COUNTS = len(_NAMES)
_STAGES = ("read", "encode", "write")  # whose nanoseconds are counted
_PLACE = ("part", "source", "records_before", "record")  # see `Counters.place`


def place_of(values: Any) -> list[int]:
    """The last _PLACE that a worker has noted."""
    return list(values[-len(_PLACE) :])


class Counters:
    """What one worker has done so far, and where its time went."""

    def __init__(self, values: Any) -> None:
        self._values: npt.NDArray[np.int64] = np.frombuffer(values, np.int64)
        self.limits = Limits(values)
        self._clock = time.perf_counter_ns()

    def place(self, part: int, source: int, before: int | None) -> None:
        """Note where the next records come from, so that the run can name one if the worker dies.

        ``before`` is the number of records before them in the source, None if unknown. ``limits``
        notes the number of each record after that, and 0 while none is rendered.
        """
        self._values[-len(_PLACE) : -1] = part, source, -1 if before is None else before

    def start(self) -> None:
        """Start timing."""
        self._clock = time.perf_counter_ns()

    def spent(self, stage: int) -> None:
        """Add the time since the last call to a stage."""
        now = time.perf_counter_ns()
        self._values[_COUNTS + stage] += now - self._clock
        self._clock = now

    def add(self, batch: DocumentBatch, documents: int, tokens: int) -> None:
        """Count a batch."""
        self._values[:_COUNTS] += (
            *(batch.bytes_read, batch.text_bytes, documents, tokens, len(batch.bad)),
            *(batch.counts.get(name, 0) for name in CHOSEN),
        )


class Meter:
    """Adds up the counts of all workers and shows them a few times a second."""

    def __init__(self, show: Show | None, bytes_total: int, workers: int) -> None:
        # Plain memory without a lock: a forked process inherits it, a spawned one gets it by
        # pickle.
        size = _COUNTS + len(_STAGES) + len(_PLACE)
        self.shared = [multiprocessing.RawArray("q", size) for _ in range(workers)]
        self._own = np.zeros(_COUNTS, np.int64)  # counts of the pieces of earlier runs
        self._show = show
        self._bytes_total = bytes_total
        self._workers = workers
        self._began = time.monotonic()
        self._shown = 0.0

    def add(self, pieces: Sequence[Piece], columns: Sequence[str]) -> None:
        """Count the pieces of an earlier run."""
        for count, name in enumerate(_NAMES):
            # With several keys, count documents of the first one, but tokens of all.
            places = [n for n, column in enumerate(columns) if column == name]
            for place in places if name == "tokens" else places[:1]:
                self._own[count] += sum(piece.total(place) for piece in pieces)

    def show(self, stage: str, *, now: bool = False) -> None:
        """Show the counts, at most every _SHOWN_SECONDS; with ``now`` in any case."""
        if self._show is None:
            return
        clock = time.monotonic()
        if not now and clock - self._shown < _SHOWN_SECONDS:
            return
        self._shown = clock
        counts_of_workers = [np.frombuffer(values, np.int64) for values in self.shared]
        sums: npt.NDArray[np.int64] = np.sum(counts_of_workers, axis=0)
        sums[:_COUNTS] += self._own
        busy = sums[_COUNTS : -len(_PLACE)]
        counts = dict(zip(_NAMES, sums[:_COUNTS].tolist(), strict=True))
        done = min(counts.pop("bytes_read"), self._bytes_total)
        self._show(
            Progress(
                stage=stage,
                done=done if stage == "encode" else self._bytes_total,
                total=self._bytes_total,
                seconds=clock - self._began,
                bottleneck=_STAGES[int(busy.argmax())] if busy.any() else "",
                workers=self._workers,
                **counts,
            )
        )

"""A worker: does the tasks of a run, one after the other, in its own process or in the run's."""

from __future__ import annotations

import mmap
from collections import deque
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from tokpack.encoding import messages
from tokpack.encoding.part import PartEncoder
from tokpack.encoding.piece import SOURCE_COLUMNS, SPILL, Piece
from tokpack.encoding.tracks import TrackFiles, Tracks, copy_piece
from tokpack.errors import OutputError, RecordError
from tokpack.files.blocks import block_sum
from tokpack.sources import LineBlock, LineStream, count_newlines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.encoding.meter import Counters
    from tokpack.encoding.piece import Job, PieceId
    from tokpack.sources import Source

HELD_BYTES = 48 << 20  # of a piece, before it goes to a spill
_HELD_PIECES = 2  # with the one in work
_LINES, _RECORDS = (SOURCE_COLUMNS.index(name) for name in ("lines", "records"))


class RunLink(Protocol):
    """A worker's connection to the run."""

    def send(self, event: messages.Event) -> None:
        """Tell the run."""

    def poll(self) -> messages.ToWorker | None:
        """What has come, without waiting for it."""

    def wait(self) -> messages.ToWorker | None:
        """What comes next; None at the end of the run."""


class Slots:
    """Memory that all processes of a run share, for segments of streams."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self._memory = memoryview(mmap.mmap(-1, max(count * size, 1)))

    def __getitem__(self, slot: int) -> memoryview:
        return self._memory[slot * self.size : (slot + 1) * self.size]


class Worker:
    """Does the tasks that come over ``link``, one after the other.

    ``slots`` is the memory for segments of streams, where there are several workers.
    """

    def __init__(
        self, job: Job, counters: Counters, link: RunLink, *, slots: Slots | None = None
    ) -> None:
        self._job = job
        self._slots = slots
        self._link = link
        self._tasks: deque[messages.Task] = deque()
        self._granted: deque[int] = deque()  # slots for the next segments of a stream
        self._at: PieceId = (0, 0)  # the piece that was begun last
        self._encoder = PartEncoder(job, counters, self._attend)
        self._joined: list[TrackFiles] = []  # by file
        self._free: list[Tracks] = []  # to be used again
        self._held: dict[PieceId, Tracks] = {}  # that wait for their place
        try:
            for name in job.joined:
                self._joined.append(TrackFiles(job.folder, name, job.tracks))
        except BaseException:
            self.close()
            raise

    def serve(self) -> None:
        """Do what comes, until the run ends."""
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
        """The joined files in which a piece has its place."""
        return self._joined[self._job.file_of(piece[0])]

    def _attend(self) -> None:
        """Do what must not wait for the end of a task."""
        while (message := self._link.poll()) is not None:
            self._take(message)

    def _take(self, message: messages.ToWorker) -> None:
        if isinstance(message, messages.UseSlot):
            self._granted.append(message.slot)
        elif not isinstance(message, messages.StorePiece) or message.stored is not None:
            self._tasks.append(message)
        elif message.id in self._held:  # else it is in a spill by now, of which the run hears
            self._move(message.id, self._file_of(message.id), message.begins)

    def _do(self, task: messages.Task) -> messages.TaskDone:
        if isinstance(task, messages.StorePiece):
            self._copy(task)
        elif isinstance(task, messages.SumBlocks):
            return messages.TaskDone(sums=tuple(map(self._sum, task.blocks)))
        else:
            try:
                self._encode(task)
            except RecordError as error:
                return messages.TaskDone(failed=(self._at, error))
        return messages.TaskDone()

    # -- encoding -------------------------------------------------------------------------------

    def _encode(
        self, task: messages.EncodePart | messages.Segment | messages.EncodeDocuments
    ) -> None:
        if isinstance(task, messages.Segment):
            assert self._slots is not None
            blocks = _blocks_in(self._slots[task.slot], task.blocks)
            piece, tracks = self._begin((task.number, task.segment), None)
            self._encoder.encode_blocks(piece, tracks, blocks, task.line, None)
            self._complete(piece, tracks)
        elif isinstance(task, messages.EncodeDocuments):
            piece, tracks = self._begin((task.number, task.segment), None)
            self._encoder.encode_documents(piece, tracks, task)
            self._complete(piece, tracks)
        elif self._job.parts[task.number].kind == "stream":
            self._encode_stream(task)
        else:
            piece, tracks = self._begin((task.number, 0), task.at)
            self._encoder.encode_part(piece, tracks, task.limit)
            self._complete(piece, tracks)

    def _encode_stream(self, task: messages.EncodePart) -> None:
        """Read a stream; its segments go to whoever has no work, the others are encoded here."""
        part = self._job.parts[task.number]
        source = self._job.sources[part.source]
        stream = LineStream(source, part.end, self._job.options.max_document_bytes)
        self._granted.clear()  # of a stream before, which had come to its end
        with closing(stream):
            segments = self._encode_segments(task, source, stream)
            source.check_unchanged()
            self._link.send(messages.StreamEnd(task.number, segments, stream.block_checksums()))

    def _encode_segments(
        self, task: messages.EncodePart, source: Source, stream: LineStream
    ) -> int:
        """Encode or hand on the segments that are not there. Returns how many there are."""
        lines = segment = 0  # before the segment; its number
        at, limit = task.at, task.limit
        for segment, blocks in enumerate(stream):
            if segment in task.skip:
                lines += sum(_lines(source, block) for block in blocks)
                continue
            self._attend()
            kept, shared = self._share(task.number, segment, blocks, lines)
            begins, at = at, None  # where the next one begins only the run knows
            if kept is None:
                lines += shared
                continue
            piece, tracks = self._begin((task.number, segment), begins)
            self._encoder.encode_blocks(piece, tracks, kept, lines, limit)
            self._complete(piece, tracks)
            lines += piece.total(_LINES)
            if limit is not None:
                limit -= piece.total(_RECORDS)
                if limit <= 0:
                    break
        return segment + 1

    def _share(
        self, number: int, segment: int, blocks: Iterator[LineBlock], line: int
    ) -> tuple[Iterator[LineBlock] | None, int]:
        """Put a segment into a slot, if there is one, for others: (None, its lines).

        Else, or where it does not fit, (its blocks, 0).
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
        self._link.send(messages.Segment(number, segment, slot, tuple(taken), line))
        return None, lines

    # -- pieces and their places ----------------------------------------------------------------

    def _begin(self, piece: PieceId, at: tuple[int, ...] | None) -> tuple[Piece, Tracks]:
        """A new piece and its tracks."""
        self._at = piece
        if not self._free and len(self._held) >= _HELD_PIECES:
            first = next(iter(self._held))
            self._move(first, *self._new_spill(first))
        tracks = self._free.pop() if self._free else Tracks(len(self._job.tracks), self._overflow)
        tracks.begin()
        if at is not None:
            tracks.store(self._file_of(piece), at)
        return Piece.empty(self._job, *piece), tracks

    def _complete(self, piece: Piece, tracks: Tracks) -> None:
        """Report a complete piece."""
        piece.sizes = tuple(tracks.sizes)
        if tracks.is_stored:
            piece.stored = tracks.finish()
            self._free.append(tracks)
        else:
            self._held[piece.id] = tracks
        self._link.send(messages.PieceEncoded(piece))

    def _move(self, piece: PieceId, files: TrackFiles, begins: Sequence[int]) -> None:
        """A piece that waits in memory goes to files."""
        tracks = self._held.pop(piece)
        tracks.store(files, begins)
        self._free.append(tracks)
        self._link.send(messages.PieceStored(piece, tracks.finish()))

    def _overflow(self, tracks: Tracks, more: int) -> None:
        """A piece in the making would take too much memory: it goes to a spill."""
        if sum(tracks.sizes) + more > HELD_BYTES:
            tracks.store(*self._new_spill(self._at))

    def _new_spill(self, piece: PieceId) -> tuple[TrackFiles, tuple[int, ...]]:
        """The files of a piece that waits there for its place, and where its tracks begin."""
        name = "{}{}-{}".format(SPILL, *piece)
        tracks = self._job.tracks
        return TrackFiles(self._job.folder, name, tracks, new=True), (0,) * len(tracks)

    def _copy(self, task: messages.StorePiece) -> None:
        assert task.stored is not None
        with closing(TrackFiles(self._job.folder, task.stored.place, self._job.tracks)) as spill:
            target = self._file_of(task.id)
            stored = copy_piece(spill, task.stored, task.sizes, target, task.begins)
        if stored is None:
            raise _not_as_written(f"{spill.paths[0]} and the files beside it")
        self._link.send(messages.PieceStored(task.id, stored))

    def _sum(self, block: messages.SharedBlock) -> bytes:
        """The sum of a block; OutputError where it is not what the pieces in it have written."""
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
    """Lines of a block; the last line of a file may lack its newline."""
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

"""A worker: does the tasks of a run, one after the other, in its own process or in the run's."""

from __future__ import annotations

import errno
import mmap
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from tokpack.encoding import messages
from tokpack.encoding.part import PartEncoder
from tokpack.encoding.piece import JOINED, SOURCE_COLUMNS, SPILL, Piece
from tokpack.encoding.tracks import TrackBuffers, TrackFiles, Tracks, copy_piece, is_stored
from tokpack.errors import OutputError, RecordError
from tokpack.files.blocks import sum_of
from tokpack.sources import LineBlock, LineStream, count_newlines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.encoding.meter import Counters
    from tokpack.encoding.piece import Job, PieceId
    from tokpack.sources import Source

HELD_BYTES = 48 << 20  # of a piece, before it goes to a spill
SPILL_BYTES = 1 << 30  # of a spill, before the next is begun
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

    ``name`` distinguishes its spills from those of other workers, also those of earlier runs.
    ``slots`` is the memory for segments of streams, where there are several workers.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        counters: Counters,
        link: RunLink,
        *,
        slots: Slots | None = None,
    ) -> None:
        self._job = job
        self._name = name
        self._slots = slots
        self._link = link
        self._tasks: deque[messages.Task] = deque()
        self._reads = False  # a stream
        self._granted: deque[int] = deque()  # slots for its next segments
        self._at: PieceId = (0, 0)  # the piece that was begun last
        self._encoder = PartEncoder(job, counters, self._attend)
        self._joined = TrackFiles(job.folder, JOINED, job.tracks)
        self._memories: list[TrackBuffers] = []  # that are free
        self._held: dict[PieceId, tuple[Tracks, TrackBuffers]] = {}
        self._spill: TrackFiles | None = None
        self._spill_ends: tuple[int, ...] = ()
        self._spills = 0

    def serve(self) -> None:
        """Do what comes, until the run ends."""
        while True:
            while not self._tasks:
                message = self._link.wait()
                if message is None:
                    return
                self._take(message)
            self._do(self._tasks.popleft())
            self._link.send(messages.TaskDone())

    def close(self) -> None:
        """Close the files."""
        self._joined.close()
        if self._spill is not None:
            self._spill.close()

    def _attend(self) -> None:
        """Carry out the placements that have come, in the middle of a task."""
        while (message := self._link.poll()) is not None:
            self._take(message)

    def _take(self, message: messages.ToWorker) -> None:
        if isinstance(message, messages.StorePiece):
            self._store(message)
        elif isinstance(message, messages.UseSlot) and self._reads:
            self._granted.append(message.slot)
        elif isinstance(message, messages.UseSlot):  # the stream has ended meanwhile
            self._link.send(messages.SlotFree(message.slot, unused=True))
        else:
            self._tasks.append(message)

    def _do(self, task: messages.Task) -> None:
        if isinstance(task, messages.EncodePart | messages.Segment):
            try:
                self._encode(task)
            except RecordError as error:
                self._link.send(messages.Unencoded(self._at, error))
        elif isinstance(task, messages.CopyPiece):
            self._copy(task)
        elif isinstance(task, messages.CheckPiece):
            whole = task.stored.place == JOINED and is_stored(self._joined, task.stored, task.sizes)
            self._link.send(
                messages.PieceStored(task.id, task.stored)
                if whole
                else messages.PieceCorrupt(task.id)
            )
        else:
            sums = tuple((edge.track, edge.block, self._sum(edge)) for edge in task.edges)
            self._link.send(messages.SharedBlockSums(sums))

    # -- encoding -------------------------------------------------------------------------------

    def _encode(self, task: messages.EncodePart | messages.Segment) -> None:
        if isinstance(task, messages.Segment):
            self._encode_shared(task)
        elif self._job.parts[task.number].kind == "stream":
            self._encode_stream(task)
        else:
            piece, tracks, memory = self._begin((task.number, 0), task.at)
            self._encoder.encode_part(piece, tracks, task.limit)
            self._complete(piece, tracks, memory)

    def _encode_stream(self, task: messages.EncodePart) -> None:
        """Read a stream; its segments go to whoever has no work, the others are encoded here."""
        part = self._job.parts[task.number]
        source = self._job.sources[part.source]
        stream = LineStream(source, part.end, self._job.options.max_document_bytes)
        self._reads = True
        try:
            segments = self._encode_segments(task, source, stream)
            source.check_unchanged()
            if task.only is None:
                self._link.send(messages.StreamEnd(task.number, segments, stream.block_checksums()))
        finally:
            stream.close()
            self._reads = False
            while self._granted:
                self._link.send(messages.SlotFree(self._granted.popleft(), unused=True))

    def _encode_segments(
        self, task: messages.EncodePart, source: Source, stream: LineStream
    ) -> int:
        """Encode or hand on the segments that are wanted. Returns how many there are."""
        lines = segment = 0  # before the segment; its number
        at, limit = task.at, task.limit
        before = None  # the segment that ends at ``at``, if one was encoded
        for segment, blocks in enumerate(stream):
            if not task.wants(segment):
                lines += sum(_lines(source, block) for block in blocks)
                continue
            self._attend()
            own, shared = self._share(task.number, segment, blocks, lines)
            if own is None:
                lines += shared
                at = None
                continue
            at = at if before in (None, segment - 1) else None
            piece, tracks, memory = self._begin((task.number, segment), at)
            self._encoder.encode_blocks(piece, tracks, own, lines, limit)
            at, before = self._complete(piece, tracks, memory), segment
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

    def _encode_shared(self, task: messages.Segment) -> None:
        assert self._slots is not None
        blocks = _blocks_in(self._slots[task.slot], task.blocks)
        piece, tracks, memory = self._begin((task.number, task.segment), None)
        self._encoder.encode_blocks(piece, tracks, blocks, task.line, None)
        self._link.send(messages.SlotFree(task.slot, unused=False))
        self._complete(piece, tracks, memory)

    # -- pieces and their places ----------------------------------------------------------------

    def _begin(
        self, piece: PieceId, at: tuple[int, ...] | None
    ) -> tuple[Piece, Tracks, TrackBuffers]:
        """A new piece, its tracks, and the memory that they take."""
        self._at = piece
        if not self._memories and len(self._held) >= _HELD_PIECES:
            self._spill_piece(next(iter(self._held)))
        memory = self._memories.pop() if self._memories else TrackBuffers(len(self._job.tracks))
        tracks = Tracks(memory, self._overflow)
        if at is not None:
            tracks.store(self._joined, at)
        return Piece.empty(self._job, *piece), tracks, memory

    def _complete(
        self, piece: Piece, tracks: Tracks, memory: TrackBuffers
    ) -> tuple[int, ...] | None:
        """Report a complete piece. Returns where it ends in the joined files, if it lies there."""
        piece.sizes = tuple(tracks.sizes)
        if not tracks.is_stored:
            self._held[piece.id] = tracks, memory
            self._link.send(messages.PieceEncoded(piece))
            return None
        self._memories.append(memory)
        piece.stored = tracks.stored()
        self._link.send(messages.PieceEncoded(piece))
        if piece.stored.place == JOINED:
            return tracks.ends
        self._spill_ends = tracks.ends
        return None

    def _store(self, placement: messages.StorePiece) -> None:
        # It may be in a spill meanwhile, and is copied from there.
        if placement.id in self._held:
            self._move(placement.id, self._joined, placement.begins)

    def _spill_piece(self, piece: PieceId) -> None:
        place, begins = self._open_spill()
        self._spill_ends = self._move(piece, place, begins)

    def _move(self, piece: PieceId, place: TrackFiles, begins: tuple[int, ...]) -> tuple[int, ...]:
        """A piece that waits in memory goes to files. Returns where it ends in them."""
        tracks, memory = self._held.pop(piece)
        tracks.store(place, begins)
        self._memories.append(memory)
        self._link.send(messages.PieceStored(piece, tracks.stored()))
        return tracks.ends

    def _overflow(self, tracks: Tracks, more: int) -> None:
        """A piece in the making would take too much memory: it goes to a spill."""
        if tracks.in_memory + more > HELD_BYTES:
            tracks.store(*self._open_spill())

    def _open_spill(self) -> tuple[TrackFiles, tuple[int, ...]]:
        """The spill for the next piece, and where its tracks begin there."""
        if self._spill is None or sum(self._spill_ends) > SPILL_BYTES:
            if self._spill is not None:
                self._spill.close()
            name = f"{SPILL}{self._name}-{self._spills}"
            self._spill = TrackFiles(self._job.folder, name, self._job.tracks, new=True)
            self._spill_ends = (0,) * len(self._job.tracks)
            self._spills += 1
        return self._spill, self._spill_ends

    def _copy(self, task: messages.CopyPiece) -> None:
        try:
            spill = TrackFiles(self._job.folder, task.stored.place, self._job.tracks)
        except OutputError as error:
            if error.errno != errno.ENOENT:
                raise
            self._link.send(messages.PieceCorrupt(task.id))
            return
        try:
            stored = copy_piece(spill, task.stored, task.sizes, self._joined, task.begins)
        finally:
            spill.close()
        self._link.send(
            messages.PieceCorrupt(task.id)
            if stored is None
            else messages.PieceStored(task.id, stored)
        )

    def _sum(self, edge: messages.SharedBlock) -> bytes:
        """The sum of a block; OutputError where it is not what the pieces in it have written."""
        begin, end = edge.parts[0][0], edge.parts[-1][1]
        data = self._joined.read(edge.track, begin, end)
        if data is None or any(
            sum_of(data[first - begin : last - begin]) != digest
            for first, last, digest in edge.parts
        ):
            raise OutputError(
                f"{self._joined.paths[edge.track]}: bytes {begin} to {end} are not those that were "
                "written: something else writes there, or the disk or the memory fails; run again, "
                "what is damaged is made again"
            )
        return sum_of(data)


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

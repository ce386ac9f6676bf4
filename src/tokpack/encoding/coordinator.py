"""The decisions of a run: which worker does what next, and where each piece goes in the output.

This is arithmetic on sizes; neither text nor tokens pass through here. All workers are equal: any
of them may encode a part, read a stream for the others, encode a segment of one, or copy a piece
from a spill. Their reports are written to the journal, from which a later run can resume.
"""

from __future__ import annotations

import os
import time
from collections import deque
from itertools import accumulate, groupby, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import ujson
import xxhash

from tokpack.encoding.folder import open_own
from tokpack.encoding.piece import RECORDS, REJECTED, Piece, Pieces, Stored
from tokpack.errors import OutputError, ResumeError
from tokpack.sources import BLOCK_BYTES, COMPRESSIONS, Limits
from tokpack.storage.disk import blocks, cannot_write, replace_file
from tokpack.storage.disk.blocks import SUM_BYTES, spans

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.piece import Job, PieceId
    from tokpack.encoding.resume import ResumeState
    from tokpack.errors import RecordError
    from tokpack.sources import DocumentBatch


# The messages between the run and its workers contain numbers and places, never tokens, and no text
# except that of an iterable, which only the run can read.
#
# A worker does its tasks in the order in which they arrive. But it handles two messages at once,
# even in the middle of a task, because others are waiting: UseSlot (an idle worker needs the
# segment in that slot) and StorePiece for a piece in its memory (later pieces need that memory). A
# worker reports what it has done as events.

# -- to a worker ------------------------------------------------------


class EncodePart(NamedTuple):
    """Encode a part. If it is a stream, encode all its segments except those in ``skip``.

    ``at`` are the offsets of the tracks of its first piece in the joined files, or None if they are
    not known yet. ``limit`` is the number of records after which to stop.
    """

    number: int
    at: tuple[int, ...] | None = None
    skip: frozenset[int] = frozenset()
    limit: int | None = None


class Segment(NamedTuple):
    """A segment of a stream, in shared memory.

    The worker that reads the stream sends it as an event; another worker gets the same as a task.
    ``blocks`` are the (bytes, stored bytes) of each block of lines; the blocks lie one after the
    other from the beginning of the slot. ``line`` is the number of lines before them.
    """

    number: int
    segment: int
    slot: int
    blocks: tuple[tuple[int, int], ...]
    line: int


class EncodeDocuments(NamedTuple):
    """Encode a segment of an iterable, which has ``line`` documents before it."""

    number: int
    segment: int
    batches: list[DocumentBatch]
    line: int
    checksum: str


class StorePiece(NamedTuple):
    """Write a piece to its place in the joined files.

    It is copied from the spill in which it is ``stored``; if ``stored`` is None, it is in the
    memory of the worker that gets this message.
    """

    id: PieceId
    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    stored: Stored | None


class SharedBlock(NamedTuple):
    """A block of a joined file with bytes of several pieces: (begin, end, checksum) for each."""

    file: int
    track: int
    number: int
    shares: tuple[tuple[int, int, bytes], ...]


class SumBlocks(NamedTuple):
    """Compute the checksums of blocks that several pieces share."""

    blocks: tuple[SharedBlock, ...]


class UseSlot(NamedTuple):
    """Put the next segment of the stream that you read into a slot, for another worker."""

    slot: int


Task = EncodePart | Segment | EncodeDocuments | StorePiece | SumBlocks
ToWorker = Task | UseSlot

# -- events ------------------------------------------------------------


class PieceStored(NamedTuple):
    """A piece lies in files now."""

    id: PieceId
    stored: Stored


class StreamEnd(NamedTuple):
    """A stream was read to its end: the number of its segments.

    ``blocks`` are the checksums of its file, or None if not all of the file was read.
    """

    number: int
    segments: int
    blocks: str | None


class TaskDone(NamedTuple):
    """The first task in the worker's queue is done. If the task had a slot, that is free.

    ``failed`` is a piece with a bad record that ends the run, and its error. ``sums`` are the
    checksums that SumBlocks asked for.
    """

    failed: tuple[PieceId, RecordError] | None = None
    sums: tuple[bytes, ...] = ()


Event = Piece | PieceStored | Segment | StreamEnd | TaskDone  # a piece: it is complete


# An iterable is read in the main thread of the run, and its documents are sent to workers as tasks:
# it may use threads or open files, which a forked worker would not have.

_TURN_SECONDS = 0.02  # of reading, then the run looks after its workers again


class DocumentFeed:
    """The segments of an iterable, the only part of its job.

    An iterable can only be read from its beginning. So segments that an earlier run has encoded,
    those in ``pieces``, are read again and compared by checksum.
    """

    def __init__(self, job: Job, pieces: Mapping[PieceId, Piece]) -> None:
        self._job = job
        self._checksums = {key: piece.blocks[0] for key, piece in pieces.items()}
        options = job.options
        limits = Limits(BLOCK_BYTES, options.max_document_bytes)
        reader = job.sources[0].memory
        self._read = reader.segments(
            options.keys, job.parts[0].end, limits, options.limit, job.columns_read
        )
        self.segments = 0  # read so far
        self.ended = False

    def read(self) -> EncodeDocuments | None:
        """The next task, or None if none was complete after a moment of reading.

        Raises what the iterable raises, and ResumeError if it gives other documents than before.
        """
        until = time.monotonic() + _TURN_SECONDS
        for segment in self._read:
            if segment is None:
                if time.monotonic() > until:
                    return None
                continue
            key = 0, self.segments
            self.segments += 1
            if key not in self._checksums:
                return EncodeDocuments(*key, segment.batches, segment.line, segment.checksum)
            if self._checksums[key] != segment.checksum:
                last = segment.line + segment.records
                raise self._others(f"documents {segment.line + 1} to {last}")
        if any(segment >= self.segments for _, segment in self._checksums):
            raise self._others("the documents end sooner, so they")
        self.ended = True
        return None

    def _others(self, which: str) -> ResumeError:
        return ResumeError(
            f"{which} are not those of the run in {self._job.folder.path}: give the same "
            "documents, choose another output, or discard that run with overwrite=True"
        )


class PieceLayout:
    """Places the pieces of a joined file, each as soon as the sizes of all earlier ones are known.

    ``parts`` are the numbers of the parts in the file. Pieces are placed in plan order without
    gaps, so the output does not depend on which worker is fastest, and a piece that is encoded
    again gets the same place.
    """

    def __init__(self, parts: range, tracks: int) -> None:
        self.ends = [0] * tracks  # where the next piece begins, by track
        self.next: PieceId = (parts.start, 0)  # the first piece without a place
        self.segments: dict[int, int] = {}  # pieces of each part, where known
        self._stop = parts.stop
        self._sizes: dict[PieceId, Sequence[int]] = {}  # of pieces without a place

    @property
    def complete(self) -> bool:
        """Whether every piece has its place."""
        return self.next[0] == self._stop

    def ends_with(self, part: int, segments: int) -> None:
        """Note how many pieces a part has. OutputError if that differs from what was noted."""
        before = self.segments.setdefault(part, segments)
        if before != segments:
            raise OutputError(
                f"part {part} of the plan had {before} segments and now has {segments}: its input "
                "changes, or memory is faulty; start from scratch"
            )

    def add(self, piece: PieceId, sizes: Sequence[int]) -> None:
        """Note the sizes of a piece without a place, in bytes by track."""
        self._sizes[piece] = sizes

    def placed(self) -> Iterator[tuple[PieceId, tuple[int, ...]]]:
        """The pieces that can have their place now, with the offsets of their tracks."""
        while not self.complete:
            part, segment = self.next
            # The number of segments of a stream is known only when it has been read to its end.
            # Until then the next part must wait, even if every segment so far has its place.
            if segment == self.segments.get(part):
                self.next = part + 1, 0
            elif (sizes := self._sizes.pop(self.next, None)) is not None:
                begins = tuple(self.ends)
                self.ends = [end + size for end, size in zip(begins, sizes, strict=True)]
                piece, self.next = self.next, (part, segment + 1)
                yield piece, begins
            else:
                return


def joined_sums(
    pieces: Iterable[Piece], file: int, track: int
) -> tuple[bytearray, list[SharedBlock]]:
    """The block checksums of a joined file, from its pieces in order, and the shared blocks.

    The checksum of a block that several pieces share cannot be computed from theirs. It is zero
    here, and the block is listed: a worker will read it back, compare each share with the checksum
    in its piece, and hash the whole block.
    """
    sums, shared = bytearray(), list[SharedBlock]()

    def shares() -> Iterator[tuple[int, int, bytes]]:
        for piece in pieces:
            assert piece.stored is not None
            begin, digests = piece.stored.begins[track], piece.stored.sums[track]
            for n, (first, last) in enumerate(spans(begin, begin + piece.sizes[track])):
                yield first, last, digests[n * SUM_BYTES : (n + 1) * SUM_BYTES]

    for number, of_block in groupby(shares(), lambda share: share[0] // blocks.BLOCK_BYTES):
        own = tuple(of_block)
        if len(own) > 1:
            shared.append(SharedBlock(file, track, number, own))
        sums += own[0][2] if len(own) == 1 else bytes(SUM_BYTES)
    return sums, shared


_BLOCKS_AT_ONCE = 16


class Coordinator:
    """Gives the tasks of a job to ``workers`` workers, numbered from 0, until it is ``finished``.

    ``resumed`` is what earlier runs have left; ``slots`` is how many segments of streams fit into
    the shared memory. With a limit of records there must be one worker.

    The states of a piece: encoded, in the memory of its ``_owner`` or in a spill; its place is
    known (``_begins``); it is ``_moving`` there; it is in place, counted by ``_in_place``, and in
    none of these three.
    """

    def __init__(
        self, job: Job, resumed: ResumeState, journal: Journal, *, workers: int, slots: int
    ) -> None:
        self.pieces = Pieces(job)
        self.stream_blocks: dict[int, str | None] = {}  # checksums of streamed files, by part
        self.rejected = 0  # bad records of all pieces
        self.outbox: deque[tuple[int, ToWorker]] = deque()  # (worker, message)
        self._job = job
        self._journal = journal
        self._workers = workers
        self._limit = job.options.limit
        bounds = pairwise((*job.files, len(job.parts)))
        self._layouts = [PieceLayout(range(*pair), len(job.tracks)) for pair in bounds]  # by file
        self._begins: dict[PieceId, tuple[int, ...]] = {}  # places of pieces not written yet
        self._in_place = 0  # pieces written in their places
        self._owner: dict[PieceId, int] = {}  # the worker with a piece in memory
        self._moving: set[PieceId] = set()  # being written or copied into place
        self._copies: deque[StorePiece] = deque()
        self._segments: deque[Segment | EncodeDocuments] = deque()
        self._resumed: dict[int, set[int]] = {}  # segments of earlier runs, by part
        # For each worker, its unfinished tasks, the current one first.
        self._tasks: list[deque[Task]] = [deque() for _ in range(workers)]
        self._slots = deque(range(slots))  # free slots
        # For each worker that reads a stream, the slots that it may fill and has not filled yet.
        self._granted: list[set[int]] = [set() for _ in range(workers)]
        self._failed: dict[PieceId, RecordError] = {}
        # By file and track; empty until all pieces are in their places.
        self._sums: dict[tuple[int, int], bytearray] = {}
        self._shared: deque[SharedBlock] = deque()  # blocks still to be hashed
        missing = self._take_over(resumed)
        self._feed: DocumentFeed | None = None  # while an iterable is read
        if missing and job.sources[0].format == "documents":
            self._feed = DocumentFeed(job, resumed.pieces)
            missing = []
        self._queue = deque(_in_working_order(job, missing, workers))  # parts

    def _take_over(self, resumed: ResumeState) -> list[int]:
        """Take over the pieces of earlier runs. Returns the incomplete parts."""
        for part, one in enumerate(self._job.parts):
            if one.kind != "stream":
                self._layout(part).ends_with(part, 1)
        for end in resumed.streams.values():
            self._layout(end.number).ends_with(end.number, end.segments)
            self.stream_blocks[end.number] = end.blocks
        for piece in resumed.pieces.values():
            self._resumed.setdefault(piece.number, set()).add(piece.segment)
            self._add(piece)
        self._place()
        counts = ((part, len(self._resumed.get(part, ()))) for part in range(len(self._job.parts)))
        return [part for part, count in counts if self._layout(part).segments.get(part) != count]

    def _layout(self, part: int) -> PieceLayout:
        """The layout of the joined file that a part belongs to."""
        return self._layouts[self._job.file_of(part)]

    @property
    def finished(self) -> bool:
        """Whether every piece is in place, and all checksums are known."""
        return bool(self._sums) and not self._shared and not any(self._tasks)

    @property
    def all_encoded(self) -> bool:
        """Whether all parts are encoded; pieces may still have to be written into place."""
        return all(layout.complete for layout in self._layouts)

    @property
    def ends(self) -> list[list[int]]:
        """The sizes of the joined files, by file and track, once all pieces have their place."""
        return [layout.ends for layout in self._layouts]

    def digests(self) -> dict[str, bytes]:
        """The block checksums of each joined file that becomes an output, at the end."""
        joined, tracks = self._job.joined, self._job.tracks
        return {f"{joined[n]}.{tracks[track]}": bytes(s) for (n, track), s in self._sums.items()}

    # -- tasks -----------------------------------------------------------------------------------

    def feed(self) -> None:
        """Give a task to each idle worker, then a second one in advance to each.

        With a second task, a worker need not wait for the run when it finishes the first.
        """
        for ahead in (1, 2):
            for worker in range(self._workers):
                tasks = self._tasks[worker]
                # Nothing is queued behind a stream, which may take hours.
                while len(tasks) < ahead and not (tasks and self._is_stream(tasks[-1])):
                    task = self._next_task(first=ahead == 1)
                    if task is None:
                        break
                    tasks.append(task)
                    self.outbox.append((worker, task))
        self._grant_slots()

    def read_documents(self) -> bool:
        """Read the iterable for a moment if workers need documents. Returns whether it did.

        Raises what the iterable raises, and ResumeError if it gives other documents than before.
        """
        if self._feed is None or self._segments or self._failed:
            return False
        if (task := self._feed.read()) is not None:
            self._segments.append(task)
        elif self._feed.ended:
            self._stream_ended(StreamEnd(0, self._feed.segments, None))
            self._feed = None
        return True

    def first_task(self, worker: int) -> Task | None:
        """The task that a worker is doing, or None if it has none."""
        return self._tasks[worker][0] if self._tasks[worker] else None

    def _is_stream(self, task: Task) -> bool:
        if not isinstance(task, EncodePart):
            return False
        return self._job.parts[task.number].kind == "stream"

    def _next_task(self, *, first: bool) -> Task | None:
        """The next task, or None. ``first`` is whether the worker has no other task."""
        # Unfinished work comes before new parts: a segment occupies a slot that its reader needs, a
        # spill occupies disk space.
        for tasks in (self._segments, self._copies):
            if tasks:
                return tasks.popleft()
        if self._shared:
            count = min(_BLOCKS_AT_ONCE, len(self._shared))
            return SumBlocks(tuple(self._shared.popleft() for _ in range(count)))
        # Near the end no part is given in advance: it would wait behind a worker's first task while
        # other workers are idle. Nor with a limit: how many records a part may still give is known
        # only when the part before it is done.
        if not first and (self._limit is not None or len(self._queue) <= 2 * self._workers):
            return None
        if self._limit is not None and self._limit <= 0:
            while self._queue:  # the limit is reached: the other parts become empty pieces
                part = self._queue.popleft()
                self._layout(part).ends_with(part, 1)
                self._add(Piece.empty(self._job, part))
            self._place()
        if not self._queue:
            return None
        part = self._queue.popleft()
        skip = frozenset(self._resumed.get(part, ()))
        segment = next(n for n in range(len(skip) + 1) if n not in skip)
        layout = self._layout(part)
        at = tuple(layout.ends) if layout.next == (part, segment) else None
        return EncodePart(part, at, skip, self._limit)

    def _grant_slots(self) -> None:
        """Let readers of streams hand out segments, once no parts are left to start.

        The aim is two segments for each worker that is not a reader, one in work and one ready;
        those already granted, ready or in work are subtracted.
        """
        if self._queue:
            return
        readers = [w for w, tasks in enumerate(self._tasks) if tasks and self._is_stream(tasks[0])]
        if not readers:
            return
        shared = sum(map(len, self._granted)) + len(self._segments)
        shared += sum(isinstance(task, Segment) for tasks in self._tasks for task in tasks)
        for _ in range(min(2 * (self._workers - len(readers)) - shared, len(self._slots))):
            reader = min(readers, key=lambda worker: len(self._granted[worker]))
            slot = self._slots.popleft()
            self._granted[reader].add(slot)
            self.outbox.append((reader, UseSlot(slot)))

    # -- events ----------------------------------------------------------------------------------

    def event(self, worker: int, event: Event) -> None:
        """Handle a worker's report. RecordError for the first bad record that ends the run."""
        if isinstance(event, Piece):
            if event.stored is None:
                self._owner[event.id] = worker
            else:
                self._journal.write({"piece": event.to_json()})
            self._add(event)
            self._place()
        elif isinstance(event, PieceStored):
            self._stored(event.id, event.stored)
        elif isinstance(event, Segment):
            self._granted[worker].remove(event.slot)
            self._segments.append(event)
        elif isinstance(event, StreamEnd):
            self._stream_ended(event)
        else:
            self._done(worker, event)
        # Every run should name the same bad record, whatever the number of workers. An earlier
        # piece of the same file may still turn up an earlier one, so wait until all of those are
        # encoded.
        for key in sorted(self._failed):
            if self._layout(key[0]).next >= key:
                raise self._failed[key]

    def _done(self, worker: int, event: TaskDone) -> None:
        task = self._tasks[worker].popleft()
        if isinstance(task, Segment):
            self._slots.append(task.slot)
        elif isinstance(task, SumBlocks):
            for block, digest in zip(task.blocks, event.sums, strict=True):
                at = block.number * SUM_BYTES
                self._sums[block.file, block.track][at : at + SUM_BYTES] = digest
        elif isinstance(task, EncodePart):  # the stream has ended and left these slots unused
            self._slots.extend(self._granted[worker])
            self._granted[worker].clear()
        # The run will fail. Of the parts not begun yet, only those before the failed one in its
        # file can still change which record is named, so drop all others, also those of other
        # files. A second failure must not drop the parts that the first one waits for, or neither
        # would ever be raised.
        if event.failed is not None:
            piece, error = event.failed
            self._failed[piece] = error
            file_of = self._job.file_of
            first = {file_of(part): part for part, _ in sorted(self._failed, reverse=True)}
            self._queue = deque(n for n in self._queue if n < first.get(file_of(n), 0))

    def _stored(self, key: PieceId, stored: Stored) -> None:
        """Note that a piece was written to files: to a spill, to its place, or from one to it."""
        piece = self.pieces.by_id[key]
        before, piece.stored = piece.stored, stored
        self._owner.pop(key, None)
        self._moving.discard(key)
        # First the journal, then remove the spill: if the run is killed in between, the journal
        # names the new place, and the next run removes the spill as unused.
        self._journal.write({"piece": piece.to_json()})
        if before is not None:
            for track in self._job.tracks:
                self._job.folder.remove_file(f"{before.place}.{track}")
        self._settle(key)

    def _stream_ended(self, event: StreamEnd) -> None:
        last = max(self._resumed.get(event.number, ()), default=-1)
        if last >= event.segments:
            raise OutputError(
                f"{self._job.describe(event.number)} had a segment {last}, but has none when read "
                "again: it is a pipe, or changes, or memory is faulty; start from scratch"
            )
        self._layout(event.number).ends_with(event.number, event.segments)
        self.stream_blocks[event.number] = event.blocks
        self._journal.write({"stream": event._asdict()})
        self._place()

    # -- places ----------------------------------------------------------------------------------

    def _add(self, piece: Piece) -> None:
        """Note a piece; its place follows later, from the sizes of all pieces before it."""
        self.pieces.by_id[piece.id] = piece
        self.rejected += piece.total(REJECTED)
        if self._limit is not None:
            self._limit -= piece.total(RECORDS)
        self._layout(piece.number).add(piece.id, piece.sizes)

    def _place(self) -> None:
        """Give a place to each piece that can have one now."""
        for layout in self._layouts:
            for key, begins in layout.placed():
                self._begins[key] = begins
                self._settle(key)
        self._sum_blocks()

    def _settle(self, key: PieceId) -> None:
        """Take the next step for a piece whose place is known: write it, copy it, or count it."""
        begins = self._begins.get(key)
        # A moving piece comes here again when its worker reports that it has arrived.
        if begins is None or key in self._moving:
            return
        piece = self.pieces.by_id[key]
        stored = piece.stored
        if stored is None and key not in self._owner:  # an empty piece, after the limit
            place = self._job.joined[self._job.file_of(key[0])]
            self._stored(key, Stored(place, begins, (b"",) * len(begins)))
        elif stored is None or not stored.is_joined:
            self._moving.add(key)
            message = StorePiece(key, begins, piece.sizes, stored)
            if stored is None:
                self.outbox.append((self._owner[key], message))
            else:
                self._copies.append(message)
        # The place comes from an earlier run. The same inputs give the same sizes and so the same
        # place: if it differs, something before this piece has changed.
        elif stored.begins != begins:
            raise OutputError(
                f"what comes before {self._job.describe(key[0])} had another size in an earlier "
                "run: an input changes, or memory is faulty; remove "
                f"{self._job.folder.path} and run again"
            )
        else:
            del self._begins[key]
            self._in_place += 1
            self._sum_blocks()

    def _sum_blocks(self) -> None:
        """Once all pieces are in place, find the blocks that still have to be hashed."""
        if not self.all_encoded or self._in_place < len(self.pieces.by_id) or self._sums:
            return
        by_file = groupby(self.pieces, lambda piece: self._job.file_of(piece.number))
        files = {file: list(pieces) for file, pieces in by_file}
        folder, options = self._job.folder, self._job.options
        # The raw streams that become files as they are.
        kinds = ("ids", *options.token_tracks)
        outputs = {folder.track(key, kind) for key in options.keys for kind in kinds}
        for file, (track, name) in product(range(len(self._layouts)), enumerate(self._job.tracks)):
            if name in outputs:
                sums, shared = joined_sums(files.get(file, ()), file, track)
                self._sums[file, track] = sums
                self._shared.extend(shared)


def _in_working_order(job: Job, numbers: Sequence[int], workers: int) -> Iterator[int]:
    """The numbers of the parts, in the order in which workers should begin them.

    Usually that is the order in which pieces are placed, so that few have to wait: plan order, but
    with all files side by side, because only one worker at a time can write to a file. With a limit
    of records it is plan order.

    A part that takes longer than an even share of the remaining work comes first: otherwise one
    worker would still be busy with it when all others are done. For a stream only decompression
    counts, because other workers can encode its segments.
    """
    left = sum(job.parts[number].weight for number in numbers)
    alone: dict[int, float] = {}  # the weight that only one worker can do
    for number in numbers:
        part = job.parts[number]
        alone[number] = part.weight
        if part.kind == "stream":
            decoding = COMPRESSIONS[job.sources[part.source].compression].decoding
            alone[number] = part.weight * decoding / (1 + decoding)
    by_weight = deque(sorted(numbers, key=lambda number: (-alone[number], number)))
    in_order = deque(numbers)
    if job.options.limit is None:
        share: dict[int, float] = {}  # how much of its file comes before a part, 0 to 1
        for begin, end in pairwise((*job.files, len(job.parts))):
            weights = [part.weight for part in job.parts[begin:end]]
            total = max(sum(weights), 1)
            before = (at / total for at in accumulate(weights, initial=0))
            share |= zip(range(begin, end), before, strict=False)
        in_order = deque(sorted(numbers, key=lambda number: (share[number], number)))
    while alone:
        for parts in (by_weight, in_order):
            while parts[0] not in alone:
                parts.popleft()
        number = by_weight[0] if alone[by_weight[0]] * workers > left else in_order[0]
        left -= job.parts[number].weight
        del alone[number]
        yield number


# The journal of a run, journal.jsonl, has a line for each piece that says where it is stored.
#
# A line begins with the xxh3_64 of its JSON, because a crash may cut off the last line and a power
# loss may damage others; reading stops at the first wrong one. The journal and the pieces may reach
# the disk in any order, so nothing is synced: a piece without a line is encoded again, and one with
# a line is compared with its checksums before it is used.

NAME = "journal.jsonl"
_DIGITS = 16


class Journal:
    """The journal of a work folder: rewritten with ``entries``, then appended to. OutputError.

    It is rewritten because lines appended after a damaged one would never be read.
    """

    def __init__(self, folder: WorkFolder, entries: Iterable[dict[str, Any]]) -> None:
        self.path = folder(NAME)
        replace_file(self.path, map(_line, entries))
        with cannot_write(self.path):
            self.file = open_own(self.path, os.O_RDWR | os.O_APPEND)

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry. Raises OutputError."""
        line = memoryview(_line(entry))
        with cannot_write(self.path):
            while line:
                line = line[os.write(self.file, line) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self.file)


def read_journal(folder: WorkFolder) -> Generator[dict[str, Any]]:
    """The entries of a folder's journal, up to the first damaged one. Raises OutputError."""
    path = folder(NAME)
    with cannot_write(path):
        try:
            file = open_own(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        with open(file, "rb") as lines:
            for line in lines:
                text = line[_DIGITS:-1]
                if _digest(text) != line[:_DIGITS]:
                    return
                yield ujson.loads(text)


def _line(entry: dict[str, Any]) -> bytes:
    text = ujson.dumps(entry, escape_forward_slashes=False).encode()
    return _digest(text) + text + b"\n"


def _digest(text: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(text).encode()

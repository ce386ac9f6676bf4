"""What the run decides: who does what next, and where each piece lies. Arithmetic, no bytes.

Every worker is equal: encoding a part, reading a stream for others, encoding a segment of it,
copying a piece from a spill are tasks. What comes from the workers goes into the journal, so that
another run can go on from there.
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
from tokpack.encoding.piece import SOURCE_COLUMNS, Piece, Pieces, Stored
from tokpack.errors import OutputError, ResumeError
from tokpack.sources import BLOCK_BYTES, COMPRESSIONS, Limits
from tokpack.storage.disk import SUM_BYTES, blocks, cannot_write, replace_file, spans

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.piece import Job, PieceId
    from tokpack.encoding.resume import ResumeState
    from tokpack.errors import RecordError
    from tokpack.sources import DocumentBatch


# What the run and its workers say to each other: numbers and places, never tokens, and text only of
# an iterable, which the run itself reads.
#
# A worker does its tasks one after the other, in the order in which they come. Two messages it
# carries out at once, also in the middle of a task: UseSlot, and StorePiece for a piece that it
# holds. What happens it reports by events.

# -- to a worker ------------------------------------------------------


class EncodePart(NamedTuple):
    """Encode a part; of a stream all segments but those in ``skip``.

    ``at`` is where the tracks of its first piece begin in the joined files, where that is known by
    now. ``limit`` is the number of records after which to stop.
    """

    number: int
    at: tuple[int, ...] | None = None
    skip: frozenset[int] = frozenset()
    limit: int | None = None


class Segment(NamedTuple):
    """A segment of a stream, in shared memory: the event of its reader, and a worker's task.

    ``blocks`` are (bytes, stored bytes) of the blocks of lines, one after the other from the
    beginning of the slot; ``line`` is the number of lines before them.
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
    """Bring a piece to its place in the joined files: from the spill in which it is ``stored``.

    Without ``stored`` it waits in the memory of the worker that is told so.
    """

    id: PieceId
    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    stored: Stored | None


class SharedBlock(NamedTuple):
    """A block of a joined file that several pieces share: (begin, end, sum) of what each has."""

    file: int
    track: int
    number: int
    shares: tuple[tuple[int, int, bytes], ...]


class SumBlocks(NamedTuple):
    """Take the checksums of blocks that several pieces share."""

    blocks: tuple[SharedBlock, ...]


class UseSlot(NamedTuple):
    """Put the next segment of the stream that is being read into a slot, for another worker."""

    slot: int


Task = EncodePart | Segment | EncodeDocuments | StorePiece | SumBlocks
ToWorker = Task | UseSlot

# -- events ------------------------------------------------------------


class PieceEncoded(NamedTuple):
    """A piece is complete, in memory or stored."""

    piece: Piece


class PieceStored(NamedTuple):
    """A piece lies in files now."""

    id: PieceId
    stored: Stored


class StreamEnd(NamedTuple):
    """A stream has so many segments; ``blocks`` are the checksums of its file, if all was read."""

    number: int
    segments: int
    blocks: str | None


class TaskDone(NamedTuple):
    """The first task of the worker's queue is done, and its slot is free, if it has one.

    ``failed`` is the piece with a bad record that ends the run. ``sums`` are those of SumBlocks.
    """

    failed: tuple[PieceId, RecordError] | None = None
    sums: tuple[bytes, ...] = ()


Event = PieceEncoded | PieceStored | Segment | StreamEnd | TaskDone


# Reads the documents of an iterable in the process of the run, as tasks for its workers.

_TURN_SECONDS = 0.02  # of reading, before the run looks after its workers again


class DocumentFeed:
    """The segments of the one part of a job over an iterable.

    Segments that an earlier run has, as ``pieces``, are read past, and compared.
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
        self.segments = 0  # that were read
        self.ended = False

    def read(self) -> EncodeDocuments | None:
        """Read on for a moment: the next task, where one is complete. What the iterable raises.

        ResumeError where it gives other documents than before.
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
                raise self._others(f"the documents number {segment.line + 1} to {last}")
        if any(segment >= self.segments for _, segment in self._checksums):
            raise self._others("the documents end sooner, so they")
        self.ended = True
        return None

    def _others(self, which: str) -> ResumeError:
        return ResumeError(
            f"{which} are not those of the run in {self._job.folder.path}: give what gave these, "
            "choose another output, or discard that run with overwrite=True"
        )


# Where pieces lie in the joined files: arithmetic over their sizes, in the order of the plan.


class PieceLayout:
    """Gives each piece of a file its place as soon as the sizes of all before it are known.

    The pieces are those of ``parts``.
    """

    def __init__(self, parts: range, tracks: int) -> None:
        self.ends = [0] * tracks  # of what has its place
        self.next: PieceId = (parts.start, 0)  # the first piece without a place
        self.segments: dict[int, int] = {}  # pieces of each part, where known
        self._stop = parts.stop
        self._sizes: dict[PieceId, Sequence[int]] = {}  # known, but without a place yet

    @property
    def complete(self) -> bool:
        """Whether every piece has its place."""
        return self.next[0] == self._stop

    def ends_with(self, part: int, segments: int) -> None:
        """A part has so many pieces. OutputError where that contradicts what was said before."""
        before = self.segments.setdefault(part, segments)
        if before != segments:
            raise OutputError(
                f"part {part} of the plan had {before} segments and now has {segments}: its input "
                "changes, or the memory fails; run again anew"
            )

    def add(self, piece: PieceId, sizes: Sequence[int]) -> None:
        """Note the sizes of a piece, in bytes by track, that has no place yet."""
        self._sizes[piece] = sizes

    def placed(self) -> Iterator[tuple[PieceId, tuple[int, ...]]]:
        """The pieces that can have their place now, with the offsets of their tracks."""
        while not self.complete:
            part, segment = self.next
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
    """The sums of the blocks of a joined file, from those of its pieces, which come in order.

    The sums of the blocks that several pieces share are zeros: these are to be taken and put in.
    """
    sums, shared = bytearray(), list[SharedBlock]()
    shares: list[tuple[int, int, bytes]] = []  # of the block that is open

    def close() -> None:
        if len(shares) > 1:
            shared.append(SharedBlock(file, track, len(sums) // SUM_BYTES, tuple(shares)))
        sums.extend(shares[0][2] if len(shares) == 1 else bytes(SUM_BYTES))
        shares.clear()

    for piece in pieces:
        assert piece.stored is not None
        begin, digests = piece.stored.begins[track], piece.stored.sums[track]
        for n, (first, last) in enumerate(spans(begin, begin + piece.sizes[track])):
            shares.append((first, last, digests[n * SUM_BYTES : (n + 1) * SUM_BYTES]))
            if last % blocks.BLOCK_BYTES == 0:
                close()
    if shares:
        close()
    return sums, shared


_BLOCKS_AT_ONCE = 16
_RECORDS, _REJECTED = (SOURCE_COLUMNS.index(name) for name in ("records", "rejected"))


class Coordinator:
    """Hands out the tasks of a job to ``workers`` workers, who are known by numbers from 0.

    ``resumed`` is what earlier runs have left; ``slots`` is how many segments of streams the shared
    memory has room for. With a limit of records there is one worker. All is done when ``finished``.
    """

    def __init__(
        self, job: Job, resumed: ResumeState, journal: Journal, *, workers: int, slots: int
    ) -> None:
        self.pieces = Pieces(job)
        self.stream_blocks: dict[int, str | None] = {}  # checksums of the files of streams, by part
        self.rejected = 0  # bad records of all pieces
        self.outbox: deque[tuple[int, ToWorker]] = deque()  # (worker, message)
        self._job = job
        self._journal = journal
        self._workers = workers
        self._limit = job.options.limit
        bounds = pairwise((*job.files, len(job.parts)))
        self._layouts = [PieceLayout(range(*pair), len(job.tracks)) for pair in bounds]  # by file
        self._begins: dict[PieceId, tuple[int, ...]] = {}  # of pieces that are not there yet
        self._in_place = 0  # pieces that are
        self._owner: dict[PieceId, int] = {}  # of pieces in a worker's memory
        self._moving: set[PieceId] = set()  # being written or copied to their place
        self._copies: deque[StorePiece] = deque()
        self._segments: deque[Segment | EncodeDocuments] = deque()
        self._resumed: dict[int, set[int]] = {}  # segments that are there already, by part
        # Of each worker: what it has been given and has not done.
        self._tasks: list[deque[Task]] = [deque() for _ in range(workers)]
        self._slots = deque(range(slots))  # that are free
        self._granted: list[set[int]] = [set() for _ in range(workers)]  # to readers of streams
        self._failed: dict[PieceId, RecordError] = {}
        # By file and track, when all pieces are in their places.
        self._sums: dict[tuple[int, int], bytearray] = {}
        self._shared: deque[SharedBlock] = deque()  # blocks whose sums are to be taken
        missing = self._take_over(resumed)
        self._feed: DocumentFeed | None = None  # while an iterable is read
        if missing and job.sources[0].format == "documents":
            self._feed = DocumentFeed(job, resumed.pieces)
            missing = []
        self._queue = deque(_in_working_order(job, missing, workers))  # parts

    def _take_over(self, resumed: ResumeState) -> list[int]:
        """Begin with the pieces that are there. Returns the parts that lack something."""
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
        """Of the file in which a part lies."""
        return self._layouts[self._job.file_of(part)]

    @property
    def finished(self) -> bool:
        """Whether every piece lies in its place, and all sums are known."""
        return bool(self._sums) and not self._shared and not any(self._tasks)

    @property
    def all_encoded(self) -> bool:
        """Whether only pieces are left that have to be written or copied to their places."""
        return all(layout.complete for layout in self._layouts)

    @property
    def ends(self) -> list[list[int]]:
        """The sizes of the joined files, by file and track, when all pieces have their place."""
        return [layout.ends for layout in self._layouts]

    def digests(self) -> dict[str, bytes]:
        """The sums of the blocks of each file that is an output, when all is finished."""
        joined, tracks = self._job.joined, self._job.tracks
        return {f"{joined[n]}.{tracks[track]}": bytes(s) for (n, track), s in self._sums.items()}

    # -- tasks -----------------------------------------------------------------------------------

    def feed(self) -> None:
        """Give tasks to those who have none; a second one in advance, so that nobody waits."""
        for ahead in (1, 2):
            for worker in range(self._workers):
                tasks = self._tasks[worker]
                while len(tasks) < ahead and not (tasks and self._is_stream(tasks[-1])):
                    task = self._next_task(first=ahead == 1)
                    if task is None:
                        break
                    tasks.append(task)
                    self.outbox.append((worker, task))
        self._grant_slots()

    def read_documents(self) -> bool:
        """Read on in an iterable for a moment, if workers need documents. Whether it did.

        What the iterable raises is passed on. ResumeError for other documents than before.
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
        """The task that a worker is doing."""
        return self._tasks[worker][0] if self._tasks[worker] else None

    def _is_stream(self, task: Task) -> bool:
        if not isinstance(task, EncodePart):
            return False
        return self._job.parts[task.number].kind == "stream"

    def _next_task(self, *, first: bool) -> Task | None:
        """The next task; with ``first`` for a worker that has none, else one in advance."""
        for tasks in (self._segments, self._copies):
            if tasks:
                return tasks.popleft()
        if self._shared:
            count = min(_BLOCKS_AT_ONCE, len(self._shared))
            return SumBlocks(tuple(self._shared.popleft() for _ in range(count)))
        if not first and (self._limit is not None or len(self._queue) <= 2 * self._workers):
            return None
        if self._limit is not None and self._limit <= 0:
            self._pass_over_rest()
            return None
        return self._encode(self._queue.popleft()) if self._queue else None

    def _encode(self, part: int) -> EncodePart:
        skip = frozenset(self._resumed.get(part, ()))
        first = next(n for n in range(len(skip) + 1) if n not in skip)
        layout = self._layout(part)
        at = tuple(layout.ends) if layout.next == (part, first) else None
        return EncodePart(part, at, skip, self._limit)

    def _pass_over_rest(self) -> None:
        """The limit of records is reached: the parts that are left become empty pieces."""
        while self._queue:
            part = self._queue.popleft()
            self._layout(part).ends_with(part, 1)
            self._add(Piece.empty(self._job, part))
        self._place()

    def _grant_slots(self) -> None:
        """Let readers of streams give segments to others, when no parts are left to encode."""
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
        """Something has happened in a worker. RecordError for the first bad record of all."""
        if isinstance(event, PieceEncoded):
            self._encoded(worker, event.piece)
        elif isinstance(event, PieceStored):
            self._stored(event.id, event.stored)
        elif isinstance(event, Segment):
            self._granted[worker].remove(event.slot)
            self._segments.append(event)
        elif isinstance(event, StreamEnd):
            self._stream_ended(event)
        else:
            self._done(worker, event)
        # Not before all before it of its file are encoded: one could have an earlier record.
        for piece in sorted(self._failed):
            if self._layout(piece[0]).next >= piece:
                raise self._failed[piece]

    def _done(self, worker: int, event: TaskDone) -> None:
        task = self._tasks[worker].popleft()
        if isinstance(task, Segment):
            self._slots.append(task.slot)
        elif isinstance(task, SumBlocks):
            for block, digest in zip(task.blocks, event.sums, strict=True):
                at = block.number * SUM_BYTES
                self._sums[block.file, block.track][at : at + SUM_BYTES] = digest
        elif isinstance(task, EncodePart):  # slots that a stream had no use for
            self._slots.extend(self._granted[worker])
            self._granted[worker].clear()
        if event.failed is not None:
            piece, error = event.failed
            self._failed[piece] = error
            file = self._job.file_of(piece[0])
            before = (part for part in self._queue if part < piece[0])
            self._queue = deque(part for part in before if self._job.file_of(part) == file)

    def _encoded(self, worker: int, piece: Piece) -> None:
        if piece.stored is None:
            self._owner[piece.id] = worker
        else:
            self._journal.write({"piece": piece.to_json()})
        self._add(piece)
        self._place()

    def _stored(self, key: PieceId, stored: Stored) -> None:
        """A piece lies in files, for the first time, or in its place and no more in a spill."""
        piece = self.pieces.by_id[key]
        before, piece.stored = piece.stored, stored
        self._owner.pop(key, None)
        self._moving.discard(key)
        self._journal.write({"piece": piece.to_json()})
        if before is not None:
            for track in self._job.tracks:
                self._job.folder.remove_file(f"{before.place}.{track}")
        self._settle(key)

    def _stream_ended(self, event: StreamEnd) -> None:
        last = max(self._resumed.get(event.number, ()), default=-1)
        if last >= event.segments:
            raise OutputError(
                f"{self._job.describe(event.number)} had a segment {last}, and now has none when "
                "it is read again: it is a pipe, or changes, or the memory fails; run again anew"
            )
        self._layout(event.number).ends_with(event.number, event.segments)
        self.stream_blocks[event.number] = event.blocks
        self._journal.write({"stream": event._asdict()})
        self._place()

    # -- places ----------------------------------------------------------------------------------

    def _add(self, piece: Piece) -> None:
        """Note a piece, whose place follows from its sizes and those of all before it."""
        self.pieces.by_id[piece.id] = piece
        self.rejected += piece.total(_REJECTED)
        if self._limit is not None:
            self._limit -= piece.total(_RECORDS)
        self._layout(piece.number).add(piece.id, piece.sizes)

    def _place(self) -> None:
        """Give their places to the pieces whose turn has come."""
        for layout in self._layouts:
            for key, begins in layout.placed():
                self._begins[key] = begins
                self._settle(key)
        self._sum_blocks()

    def _settle(self, key: PieceId) -> None:
        """Do what is next for a piece that has its place: write it, copy it, or count it."""
        begins = self._begins.get(key)
        if begins is None or key in self._moving:
            return
        piece = self.pieces.by_id[key]
        stored = piece.stored
        if stored is None and key not in self._owner:  # an empty one that was passed over
            place = self._job.joined[self._job.file_of(key[0])]
            self._stored(key, Stored(place, begins, (b"",) * len(begins)))
        elif stored is None or not stored.is_joined:
            self._moving.add(key)
            message = StorePiece(key, begins, piece.sizes, stored)
            if stored is None:
                self.outbox.append((self._owner[key], message))
            else:
                self._copies.append(message)
        elif stored.begins != begins:
            raise OutputError(
                f"what comes before {self._job.describe(key[0])} had another size in an earlier "
                "run: an input changes, or the memory fails; remove "
                f"{self._job.folder.path} and run again"
            )
        else:
            del self._begins[key]
            self._in_place += 1
            self._sum_blocks()

    def _sum_blocks(self) -> None:
        """When all pieces are in their places, see which sums of blocks are still to be taken."""
        if not self.all_encoded or self._in_place < len(self.pieces.by_id) or self._sums:
            return
        by_file = groupby(self.pieces, lambda piece: self._job.file_of(piece.number))
        files = {file: list(pieces) for file, pieces in by_file}
        for file, (track, name) in product(range(len(self._layouts)), enumerate(self._job.tracks)):
            if name in self._job.outputs:
                sums, shared = joined_sums(files.get(file, ()), file, track)
                self._sums[file, track] = sums
                self._shared.extend(shared)


def _in_working_order(job: Job, numbers: Sequence[int], workers: int) -> Iterator[int]:
    """The parts in the order in which pieces get their places, with an exception.

    That is the order of the plan, in all files side by side, since a file takes one writer at a
    time; with a limit it is the plan's alone. A part that one worker would still be encoding when
    all others are done comes at once: it takes longer than an even share of all that is left. Of a
    stream only the decompression counts, since other workers encode its segments.
    """
    left = sum(job.parts[number].weight for number in numbers)
    alone = {number: _alone(job, number) for number in numbers}
    by_weight = deque(sorted(numbers, key=lambda number: (-alone[number], number)))
    in_order = deque(numbers if job.options.limit is not None else _side_by_side(job, numbers))
    while alone:
        for parts in (by_weight, in_order):
            while parts[0] not in alone:
                parts.popleft()
        number = by_weight[0] if alone[by_weight[0]] * workers > left else in_order[0]
        left -= job.parts[number].weight
        del alone[number]
        yield number


def _side_by_side(job: Job, numbers: Sequence[int]) -> list[int]:
    """The parts of each file in order, and all files as far as the others at any time."""
    share: dict[int, float] = {}  # of the file before a part
    for begin, end in pairwise((*job.files, len(job.parts))):
        weights = [part.weight for part in job.parts[begin:end]]
        before = accumulate(weights, initial=0)
        share |= zip(range(begin, end), (at / max(sum(weights), 1) for at in before), strict=False)
    return sorted(numbers, key=lambda number: (share[number], number))


def _alone(job: Job, number: int) -> float:
    """The weight of what one worker must do alone of a part."""
    part = job.parts[number]
    if part.kind != "stream":
        return part.weight
    decoding = COMPRESSIONS[job.sources[part.source].compression].decoding
    return part.weight * decoding / (1 + decoding)


# The journal of a run, journal.jsonl: what is stored where, a line each.
#
# A line begins with the xxh3_64 of its JSON. A crash may leave a line that is cut off, and a power
# loss one that is damaged: from there on nothing is read.

NAME = "journal.jsonl"
_DIGITS = 16


class Journal:
    """The journal of a work folder, begun anew with ``entries``, to append more. OutputError."""

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
    """The entries of the journal that is there, up to the first that is not whole. OutputError."""
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

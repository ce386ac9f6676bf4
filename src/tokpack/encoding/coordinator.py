"""What the run decides: who does what next, and where each piece lies. Arithmetic, no bytes.

The parent of all workers. Every worker is equal: encoding a part, reading a stream for others,
encoding a segment of it, copying what lies in a spill, checking what an earlier run has left, are
tasks. What comes from the workers goes into the journal, so that another run can go on from there.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING

from tokpack.encoding import messages
from tokpack.encoding.layout import FileSums, PieceLayout
from tokpack.encoding.piece import JOINED, SOURCE_COLUMNS, Piece, Pieces, Stored
from tokpack.encoding.queue import Queue
from tokpack.errors import OutputError

if TYPE_CHECKING:
    from tokpack.encoding.journal import Journal
    from tokpack.encoding.piece import Job, PieceId
    from tokpack.encoding.resume import ResumeState
    from tokpack.errors import RecordError

_EDGES_AT_ONCE = 16
_RECORDS, _REJECTED = (SOURCE_COLUMNS.index(name) for name in ("records", "rejected"))
_log = logging.getLogger(__name__)


class Coordinator:
    """Hands out the tasks of a job to ``workers`` workers, who are known by numbers from 0.

    ``found`` is what an earlier run has left; ``slots`` is how many segments of streams the shared
    memory has room for. With a limit of records there is one worker. All is done when ``finished``.
    """

    def __init__(
        self, job: Job, found: ResumeState, journal: Journal, *, workers: int, slots: int
    ) -> None:
        self.pieces = Pieces(job)
        self.blocks: dict[int, str | None] = dict(found.stream_blocks)  # of streams, by part
        self.rejected = 0  # bad records of all pieces
        self.outbox: deque[tuple[int, messages.ToWorker]] = deque()  # (worker, message)
        self._job = job
        self._journal = journal
        self._workers = workers
        self._limit = job.options.limit
        self._layout = PieceLayout(len(job.parts), len(job.tracks))
        self._sums = {n: FileSums(n) for n, name in enumerate(job.tracks) if name.endswith(".ids")}
        self._edges: list[messages.SharedBlock] = []
        self._edges_out = 0
        self._begins: dict[PieceId, tuple[int, ...]] = {}  # of pieces that are not there yet
        self._owner: dict[PieceId, int] = {}  # of pieces in a worker's memory
        self._found: dict[int, set[int]] = {}  # segments that an earlier run has left, by part
        self._last: dict[int, int] = {}  # the highest segment known, by part
        self._under_way: set[PieceId] = set()  # being checked, written or copied
        self._in_spill: Counter[str] = Counter()  # pieces in each
        self._newest_spill: dict[str, str] = {}  # of each worker
        self._checks: deque[messages.CheckPiece] = deque()
        self._copies: deque[messages.CopyPiece] = deque()
        self._segments: deque[messages.Segment] = deque()
        self._damaged: dict[int, set[int]] = {}  # segments to be made again, by part
        self._wanted: set[PieceId] = set()  # of them what is being read again
        # Of each worker: what it has been given and has not done.
        self._tasks: list[deque[messages.Task]] = [deque() for _ in range(workers)]
        self._slots = deque(range(slots))
        self._granted: list[int] = [0] * workers
        self._placed = 0
        self._failed: dict[PieceId, RecordError] = {}
        self._queue = Queue(job, self._take_over(found), workers)

    # -- what is there ---------------------------------------------------------------------------

    def _take_over(self, found: ResumeState) -> list[int]:
        """Begin with the pieces that were found. Returns the parts that lack something."""
        for part in range(len(self._job.parts)):
            if self._job.parts[part].kind != "stream":
                self._layout.ends_with(part, 1)
            elif part in found.segments:
                self._layout.ends_with(part, found.segments[part])
        for piece in found.pieces.values():
            assert piece.stored is not None
            self.pieces.by_id[piece.id] = piece
            self._found.setdefault(piece.number, set()).add(piece.segment)
            self._last[piece.number] = max(piece.segment, self._last.get(piece.number, 0))
            self.rejected += piece.total(_REJECTED)
            self._layout.add(piece.id, piece.sizes)
            if self._limit is not None:
                self._limit -= piece.total(_RECORDS)
            if piece.stored.place == JOINED:
                self._under_way.add(piece.id)
                self._checks.append(messages.CheckPiece(piece.id, piece.stored, piece.sizes))
            else:
                self._in_spill[piece.stored.place] += 1
        missing = [part for part in range(len(self._job.parts)) if not self._has_all(part)]
        self._place()
        return missing

    def _has_all(self, part: int) -> bool:
        segments = self._layout.segments(part)
        known = self.pieces.by_id
        return segments is not None and all((part, n) in known for n in range(segments))

    @property
    def finished(self) -> bool:
        """Whether every piece lies in its place, and all sums are known."""
        return (
            self._layout.complete
            and self._placed == len(self.pieces.by_id)
            and not self._edges
            and not self._edges_out
        )

    @property
    def all_encoded(self) -> bool:
        """Whether only pieces are left that have to be written or copied to their places."""
        return self._layout.complete

    @property
    def ends(self) -> list[int]:
        """The sizes of the joined files, when all pieces have their place."""
        return self._layout.ends

    def digests(self) -> dict[str, bytes]:
        """The sums of the blocks of each file of ids, by its track, when all is finished."""
        found = {}
        for track, sums in self._sums.items():
            known = sums.sums(self._layout.ends[track])
            if known is None:
                raise OutputError("not all blocks of the output have a checksum; run again anew")
            found[self._job.tracks[track]] = known
        return found

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

    def first_task(self, worker: int) -> messages.Task | None:
        """The task that a worker is doing."""
        return self._tasks[worker][0] if self._tasks[worker] else None

    def _is_stream(self, task: messages.Task) -> bool:
        return isinstance(task, messages.EncodePart) and self._is_stream_part(task.number)

    def _is_stream_part(self, part: int) -> bool:
        return self._job.parts[part].kind == "stream"

    def _next_task(self, *, first: bool) -> messages.Task | None:
        """The next task; with ``first`` for a worker that has none, else one in advance."""
        for tasks in (self._checks, self._segments, self._copies):
            if tasks:
                return tasks.popleft()
        if len(self._edges) >= _EDGES_AT_ONCE or (self._edges and not self._parts_left):
            self._edges_out += 1
            edges, self._edges = self._edges[:_EDGES_AT_ONCE], self._edges[_EDGES_AT_ONCE:]
            return messages.SumSharedBlocks(tuple(edges))
        if not first and (self._limit is not None or len(self._queue) <= 2 * self._workers):
            return None
        if self._damaged:
            return self._encode_again()
        if self._limit is not None and self._limit <= 0:
            self._pass_over_rest()
            return None
        part = self._queue.take()
        return None if part is None else self._encode(part)

    @property
    def _parts_left(self) -> bool:
        return bool(self._damaged) or len(self._queue) > 0

    def _encode(self, part: int) -> messages.EncodePart:
        skip = frozenset(self._found.get(part, ()))
        first = next(n for n in range(len(skip) + 1) if n not in skip)
        at = tuple(self._layout.ends) if self._layout.next == (part, first) else None
        return messages.EncodePart(part, at, skip, limit=self._limit)

    def _encode_again(self) -> messages.EncodePart:
        part, segments = self._damaged.popitem()
        first, limit = (part, min(segments)), self._job.options.limit
        if limit is not None:  # the limit that the part had: less what earlier pieces have
            limit -= sum(p.total(_RECORDS) for key, p in self.pieces.by_id.items() if key < first)
            if rest := segments - {first[1]}:
                self._damaged[part] = rest
            segments = {first[1]}
        only = frozenset(segments) if self._is_stream_part(part) else None
        self._wanted.update((part, segment) for segment in segments)
        return messages.EncodePart(part, self._begins.get(first), only=only, limit=limit)

    def _pass_over_rest(self) -> None:
        """The limit of records is reached: the parts that are left become empty pieces."""
        while (part := self._queue.take()) is not None:
            self._layout.ends_with(part, 1)
            piece = Piece.empty(self._job, part)
            self.pieces.by_id[piece.id] = piece
            self._layout.add(piece.id, piece.sizes)
        self._place()

    def _grant_slots(self) -> None:
        """Let readers of streams give segments to others, when no parts are left to encode."""
        if not self._slots or self._parts_left:
            return
        readers = [w for w, tasks in enumerate(self._tasks) if tasks and self._is_stream(tasks[0])]
        if not readers:
            return
        shared = sum(self._granted) + len(self._segments)
        shared += sum(isinstance(task, messages.Segment) for tasks in self._tasks for task in tasks)
        for _ in range(2 * (self._workers - len(readers)) - shared):
            if not self._slots:
                return
            reader = min(readers, key=lambda worker: self._granted[worker])
            self._granted[reader] += 1
            self.outbox.append((reader, messages.UseSlot(self._slots.popleft())))

    # -- events ----------------------------------------------------------------------------------

    def event(self, worker: int, event: messages.Event) -> None:
        """Something has happened in a worker. RecordError for the first bad record of all."""
        if isinstance(event, messages.PieceEncoded):
            self._encoded(worker, event.piece)
        elif isinstance(event, messages.Unencoded):
            self._failed[event.id] = event.error
            self._queue.drop_from(event.id[0])
        elif isinstance(event, messages.PieceStored):
            self._stored(event.id, event.stored)
        elif isinstance(event, messages.TaskDone):
            self._done(self._tasks[worker].popleft())
        elif isinstance(event, messages.Segment):
            self._granted[worker] -= 1
            self._wanted.discard((event.number, event.segment))
            self._segments.append(event)
        elif isinstance(event, messages.SlotFree):
            self._granted[worker] -= event.unused
            self._slots.append(event.slot)
        elif isinstance(event, messages.StreamEnd):
            self._stream_ended(event)
        elif isinstance(event, messages.PieceCorrupt):
            self._lost(event.id)
        else:
            self._edges_out -= 1
            for track, block, digest in event.sums:
                self._sums[track].put(block, digest)
        # Not before all pieces before it are encoded: one of them could have an earlier record.
        if self._failed and self._layout.next >= (first := min(self._failed)):
            raise self._failed[first]

    def _encoded(self, worker: int, piece: Piece) -> None:
        """A piece is complete, for the first time or again."""
        key, known = piece.id, self.pieces.by_id.get(piece.id)
        if known is not None and known.sizes != piece.sizes:
            raise OutputError(
                f"{self._job.describe(key[0])} gave {sum(known.sizes)} bytes, and now "
                f"{sum(piece.sizes)}: its input changes, or the memory fails; run again anew"
            )
        self._wanted.discard(key)
        if known is None:
            self.rejected += piece.total(_REJECTED)
            if self._limit is not None:
                self._limit -= piece.total(_RECORDS)
        self.pieces.by_id[key] = piece
        self._last[key[0]] = max(key[1], self._last.get(key[0], 0))
        if piece.stored is None:
            self._owner[key] = worker
        else:
            self._note(piece)
        if known is None:
            self._layout.add(key, piece.sizes)
        self._place()
        self._settle(key)

    def _stored(self, key: PieceId, stored: Stored) -> None:
        """A piece lies in files, for the first time, or elsewhere than before, or as it did."""
        piece = self.pieces.by_id[key]
        before, piece.stored = piece.stored, stored
        self._owner.pop(key, None)
        self._under_way.discard(key)
        if before != stored:
            self._note(piece)
            if before is not None:
                self._leave_spill(before.place)
        self._settle(key)

    def _note(self, piece: Piece) -> None:
        assert piece.stored is not None
        self._journal.write({"piece": piece.to_json()})
        if piece.stored.place != JOINED:
            self._enter_spill(piece.stored.place)

    def _lost(self, key: PieceId) -> None:
        """A piece that an earlier run has stored is damaged: it is encoded again."""
        if not self._damaged:
            _log.warning(
                "%s: what is left of the stopped run is damaged or was lost in part; it is made "
                "again",
                self._job.folder.path,
            )
        piece = self.pieces.by_id[key]
        assert piece.stored is not None
        self._leave_spill(piece.stored.place)
        piece.stored = None
        self._under_way.discard(key)
        self._damaged.setdefault(key[0], set()).add(key[1])

    def _done(self, task: messages.Task) -> None:
        """A task is done. OutputError where a stream did not give again what it gave before."""
        if isinstance(task, messages.EncodePart) and task.only and not self._failed:
            for segment in sorted(task.only):
                if (task.number, segment) in self._wanted:
                    raise self._other_stream(task.number, segment)

    def _stream_ended(self, event: messages.StreamEnd) -> None:
        if (last := self._last.get(event.number, -1)) >= event.segments:
            raise self._other_stream(event.number, last)
        self._layout.ends_with(event.number, event.segments)
        self.blocks[event.number] = event.blocks
        self._journal.write({"stream": event._asdict()})
        self._place()

    def _other_stream(self, part: int, segment: int) -> OutputError:
        return OutputError(
            f"{self._job.describe(part)} had a segment {segment}, and now has none when it is read "
            "again: it is a pipe, or changes, or the memory fails; run again anew"
        )

    # -- places ----------------------------------------------------------------------------------

    def _place(self) -> None:
        """Give their places to the pieces whose turn has come."""
        for key, begins in self._layout.placed():
            self._begins[key] = begins
            self._settle(key)
        self._sum_ends()

    def _settle(self, key: PieceId) -> None:
        """Do what is next for a piece that has its place: write it, copy it, or count it."""
        begins = self._begins.get(key)
        if begins is None or key in self._under_way:
            return
        piece = self.pieces.by_id[key]
        stored = piece.stored
        if key in self._owner:
            self._under_way.add(key)
            self.outbox.append((self._owner[key], messages.StorePiece(key, begins)))
        elif stored is None:
            if not any(piece.sizes):  # nothing to write
                self._stored(key, Stored(JOINED, begins, (b"",) * len(begins)))
        elif stored.place != JOINED:
            self._under_way.add(key)
            self._copies.append(messages.CopyPiece(key, stored, piece.sizes, begins))
        elif stored.begins != begins:
            self._lost(key)
        else:
            self._count(key, piece, stored)

    def _count(self, key: PieceId, piece: Piece, stored: Stored) -> None:
        """Note that a piece lies in its place."""
        del self._begins[key]
        self._placed += 1
        for track, sums in self._sums.items():
            own = sums.add(stored.begins[track], piece.sizes[track], stored.sums[track])
            self._edges.extend(own)
        self._sum_ends()

    def _sum_ends(self) -> None:
        """When all pieces are in their places, ask for the sums of the files' last blocks."""
        if self._layout.complete and self._placed == len(self.pieces.by_id):
            for track, sums in self._sums.items():
                self._edges.extend(sums.last(self._layout.ends[track]))

    def _enter_spill(self, place: str) -> None:
        self._in_spill[place] += 1
        writer = place.rpartition("-")[0]
        before, self._newest_spill[writer] = self._newest_spill.get(writer), place
        if before not in (None, place) and not self._in_spill[before]:
            self._remove_spill(before)

    def _leave_spill(self, place: str) -> None:
        if place == JOINED:
            return
        self._in_spill[place] -= 1
        # A worker still writes to its newest spill, so that one stays.
        if not self._in_spill[place] and self._newest_spill.get(place.rpartition("-")[0]) != place:
            self._remove_spill(place)

    def _remove_spill(self, place: str) -> None:
        for track in self._job.tracks:
            self._job.folder.remove_file(f"{place}.{track}")

"""The join: pieces, in plan order, into one file for each track, beside the workers.

A thread copies inside the kernel what the workers have announced, reads it back, and makes it
durable now and then, so that little is left to do when the last worker ends. What is joined, has
the checksums of the workers, and is durable, is entered in ``journal.json``; only then the pieces
that it covers are deleted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokpack.encoding.folder import create_own, open_own
from tokpack.encoding.proof import Proof, spans_of
from tokpack.errors import OutputError
from tokpack.files.copying import copy_range
from tokpack.files.durable import cannot_write, rename, sync_data, sync_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokpack.encoding.piece import Job, Piece
    from tokpack.progress import Advance
    from tokpack.sources import Part

SYNC_SECONDS = 2.0
SYNC_BYTES = 256 << 20
_HASH_BYTES = 1 << 30  # at most, before it looks for new work
_log = logging.getLogger(__name__)


def groups_of(parts: Sequence[Part]) -> list[list[int]]:
    """The numbers of the parts, grouped: all stripes of a source together, any other part alone."""
    groups: list[list[int]] = []
    for number, part in enumerate(parts):
        previous = parts[number - 1] if number else None
        if (
            previous is not None
            and part.kind == previous.kind == "stripes"
            and part.source == previous.source
        ):
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


@dataclass
class _State:
    """How far a part is written, and how much of it is joined."""

    extents: list[tuple[int, ...]] = field(default_factory=list)
    complete: bool = False
    taken: int = 0  # how many extents are joined completely
    copied: tuple[int, ...] = ()  # joined bytes of each track

    def announce(self, extents: Sequence[tuple[int, ...]]) -> None:
        """Take over new extents; the first may continue the last one known."""
        if self.extents and extents and self.extents[-1][0] == extents[0][0]:
            self.extents.pop()
        self.extents.extend(extents)


class Joiner:
    """Joins the pieces of a job; ``resume`` before ``start``.

    ``advanced`` and ``finished`` may be called from another thread than the joiner's own; so may
    ``check``, which raises what went wrong there. ``finish`` waits for everything to be joined and
    durable. The copy of a part that is still being encoded is a guess: it is entered in the journal
    when the piece is there.
    """

    def __init__(self, job: Job, beat: Callable[[], None]) -> None:
        self._job = job
        self._folder = job.folder
        self._groups = groups_of(job.parts)
        self._group = 0  # the one being joined
        self._segment = 0
        self._states: dict[int, _State] = {}
        self._ends = [0] * len(job.tracks)  # bytes joined
        self._proofs = [Proof() for _ in job.tracks]
        self._checksums: dict[int, list[str]] = {}  # by part: of each track, from its worker
        # Joined groups that are not read back yet, with the end of each track.
        self._unproved: deque[tuple[list[int], list[int]]] = deque()
        self._proved = 0  # groups read back and found right
        self._committed = 0  # groups in the journal
        self._unsynced = 0
        self._synced = time.monotonic()
        self._files: list[int] = []
        self._open: dict[int, list[int]] = {}
        # A plan of one part needs no copy: its piece becomes the joined file.
        self._single = len(job.parts) == 1
        self._beat = beat
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="tokpack-join", daemon=True)

    # -- called by the run ----------------------------------------------------------------------

    def resume(self, known: Mapping[int, Piece]) -> int:
        """Go back to what the journal says. Returns how many parts need no piece any more.

        ``known`` are the pieces whose description exists. What is joined is compared with their
        checksums; from the first group on that is not there, or not as its workers wrote it, all
        is joined anew.
        """
        if self._single:
            return 0
        journaled = self._journaled()
        groups = next(
            (n for n in range(journaled) if not all(part in known for part in self._groups[n])),
            journaled,
        )
        for track in self._job.tracks:
            self._files.append(self._open_joined(self._folder.joined(track), anew=not groups))
        while (proved := self._prove(groups, known)) < groups:
            groups = proved
        if groups < journaled:
            _log.warning(
                "%s: of %d pieces that were joined %d are missing or damaged; they are made again",
                self._folder.path,
                *(self._parts_in(journaled), self._parts_in(journaled) - self._parts_in(groups)),
            )
            self._write_journal(groups)
        self._group = self._proved = self._committed = groups
        for track, file, end in zip(self._job.tracks, self._files, self._ends, strict=True):
            with cannot_write(self._folder.joined(track)):
                os.ftruncate(file, end)
        return self._parts_in(groups)

    def start(self) -> None:
        """Begin to join, in a thread: not before the workers are forked."""
        self._thread.start()

    def advanced(self, advance: Advance) -> None:
        """A part has come so far."""
        with self._changed:
            self._state(advance.number).announce(advance.extents)
            self._changed.notify()

    def finished(self, piece: Piece) -> None:
        """A piece exists."""
        with self._changed:
            state = self._state(piece.number)
            state.extents = piece.extents
            state.complete = True
            self._checksums[piece.number] = piece.checksums
            self._changed.notify()

    def check(self) -> None:
        """Raise the error that ended the joiner's thread, if any."""
        if self._error is not None:
            raise self._error

    def finish(self) -> dict[str, str]:
        """Wait until all is joined, proved and durable. Returns the xxh3_128 of each track."""
        self._close()
        self.check()
        if self._single:
            for track in self._job.tracks:
                joined = self._folder.joined(track)
                with cannot_write(joined):
                    rename(self._folder.piece(0, track), joined, fsync=False)
        return {
            track: proof.hexdigest()
            for track, proof in zip(self._job.tracks, self._proofs, strict=True)
        }

    def stop(self) -> None:
        """Give up what is not yet joined."""
        self._error = self._error or OutputError("the join was stopped")
        self._close()
        for file in [*self._files, *(f for files in self._open.values() for f in files)]:
            os.close(file)
        self._files, self._open = [], {}

    # -- the thread -----------------------------------------------------------------------------

    def _close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _main(self) -> None:
        try:
            while self._error is None:
                # Read before joining: nothing is announced after closing, so one pass is enough.
                closing = self._closing
                moved = self._join()
                moved |= not self._read_back()
                self._beat()
                if closing and self._group == len(self._groups) and not moved:
                    self._sync()
                    return
                if closing and not moved:
                    raise OutputError(f"{self._folder.path}: pieces are missing at the join")
                due = self._synced + SYNC_SECONDS
                if self._unsynced and (self._unsynced > SYNC_BYTES or time.monotonic() > due):
                    self._sync()
                with self._changed:
                    if not moved and not self._closing:
                        self._changed.wait(1.0)
        except BaseException as error:
            self._error = error

    def _state(self, number: int) -> _State:
        return self._states.setdefault(number, _State(copied=(0,) * len(self._job.tracks)))

    def _join(self) -> bool:
        """Append all bytes whose turn it is. True if there were any."""
        moved = False
        while self._group < len(self._groups):
            group = self._groups[self._group]
            with self._changed:
                states = [self._state(number) for number in group]
                known = [state.extents[state.taken : state.taken + 2] for state in states]
                complete = [state.complete for state in states]
            if all(complete) and not any(known):
                self._end_group(group)
                moved = True
                continue
            turn = self._segment % len(group)
            if not known[turn]:
                if not complete[turn]:
                    return moved
                self._segment += 1
                continue
            segment, *ends = known[turn][0]
            if segment > self._segment:  # no document begins in this stripe
                self._segment += 1
                continue
            closed = complete[turn] or len(known[turn]) > 1
            state = states[turn]
            moved |= self._copy(group[turn], state.copied, ends)
            state.copied = tuple(ends)
            if not closed:
                return moved
            with self._changed:
                state.taken += 1
            self._segment += 1
        return moved

    def _copy(self, number: int, begins: Sequence[int], ends: Sequence[int]) -> bool:
        if tuple(begins) == tuple(ends):
            return False
        if self._single and not self._files:
            self._files = self._open_piece(number, os.O_RDWR)
        if number not in self._open and not self._single:
            self._open[number] = self._open_piece(number, os.O_RDONLY)
        for track, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            if not self._single:
                with cannot_write(self._folder.joined(self._job.tracks[track])):
                    copy_range(
                        self._open[number][track], self._files[track], begin, end, self._ends[track]
                    )
            self._ends[track] += end - begin
            self._proofs[track].expect(number, self._ends[track])
            self._unsynced += end - begin
        return True

    def _open_piece(self, number: int, flags: int) -> list[int]:
        files: list[int] = []
        try:
            for track in self._job.tracks:
                path = self._folder.piece(number, track)
                with cannot_write(path):
                    files.append(open_own(path, flags))
        except BaseException:
            for file in files:
                os.close(file)
            raise
        return files

    def _end_group(self, group: list[int]) -> None:
        for number in group:
            for file in self._open.pop(number, []):
                os.close(file)
            self._states.pop(number)
        self._unproved.append((group, list(self._ends)))
        self._group += 1
        self._segment = 0

    def _read_back(self) -> bool:
        """Read back what was joined, for the checksums. True when all of it was read."""
        there = [self._follow(track, _HASH_BYTES) for track in range(len(self._files))]
        while self._unproved:
            group, ends = self._unproved[0]
            if any(proof.at < end for proof, end in zip(self._proofs, ends, strict=True)):
                break
            self._unproved.popleft()
            for number in group:
                self._compare(number, self._checksums.pop(number))
            self._proved += 1
        return all(there)

    def _follow(self, track: int, most: int) -> bool:
        path = self._folder.joined(self._job.tracks[track])
        with cannot_write(path):
            return self._proofs[track].follow(self._files[track], most)

    def _compare(self, number: int, checksums: Sequence[str]) -> None:
        """Raise OutputError where a part's bytes are not, in a joined file, what was written."""
        for track, proof, checksum in zip(self._job.tracks, self._proofs, checksums, strict=True):
            if proof.take(number) != checksum:
                self._folder.remove_file(f"{number:06d}.json")
                raise OutputError(
                    f"{self._folder.joined(track)}: the bytes of part {number} are not those that "
                    "its worker wrote: something else writes there, or the disk or the memory "
                    "fails; run again, the part is made again"
                )

    def _sync(self) -> None:
        """Make what is joined durable, enter whole groups in the journal, delete their pieces."""
        for track, file in zip(self._job.tracks, self._files, strict=False):
            with cannot_write(self._folder.joined(track)):
                sync_data(file)
        self._unsynced = 0
        self._synced = time.monotonic()
        if self._proved == self._committed or self._single:
            return
        numbers = [n for group in self._groups[self._committed : self._proved] for n in group]
        for number in numbers:
            for kind in ("json", "rejects.jsonl"):
                sync_file(self._folder.piece(number, kind))
        self._write_journal(self._proved)
        for number in numbers:
            for track in self._job.tracks:
                self._folder.remove_file(os.path.basename(self._folder.piece(number, track)))
        self._committed = self._proved

    # -- going back -----------------------------------------------------------------------------

    def _journaled(self) -> int:
        """How many groups the journal lists; 0 where it is missing or damaged."""
        groups = (self._folder.read_json("journal.json") or {}).get("groups")
        return groups if type(groups) is int and 0 <= groups <= len(self._groups) else 0

    def _write_journal(self, groups: int) -> None:
        self._folder.write_json("journal.json", {"groups": groups})

    def _parts_in(self, groups: int) -> int:
        return sum(map(len, self._groups[:groups]))

    def _open_joined(self, path: str, *, anew: bool) -> int:
        if anew or not os.path.lexists(path):
            return create_own(path)
        with cannot_write(path):
            return open_own(path, os.O_RDWR)

    def _prove(self, groups: int, known: Mapping[int, Piece]) -> int:
        """Read the joined files back from their beginning; the groups that are as written."""
        self._proofs = [Proof() for _ in self._job.tracks]
        self._ends = [0] * len(self._job.tracks)
        for group in range(groups):
            before = list(self._ends)
            for number, sizes in spans_of([known[n] for n in self._groups[group]]):
                for track, size in enumerate(sizes):
                    self._ends[track] += size
                    self._proofs[track].expect(number, self._ends[track])
            if not self._is_as_written(group, known):
                self._ends = before
                return group
            self._beat()
        return groups

    def _is_as_written(self, group: int, known: Mapping[int, Piece]) -> bool:
        for track, (file, end) in enumerate(zip(self._files, self._ends, strict=True)):
            if os.fstat(file).st_size < end:
                return False
            while not self._follow(track, _HASH_BYTES):
                self._beat()
        return all(
            proof.take(number) == checksum
            for number in self._groups[group]
            for proof, checksum in zip(self._proofs, known[number].checksums, strict=True)
        )

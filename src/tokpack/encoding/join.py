"""The join: pieces, in plan order, into one file for each track, beside the workers.

A thread copies inside the kernel what the workers have announced, and makes it durable now and
then, so that little is left to do when the last worker ends. What is joined and durable is entered
in ``journal.json``; only then the pieces that it covers are deleted.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokpack.errors import OutputError
from tokpack.files.copying import Digest, copy_range
from tokpack.files.durable import cannot_write, sync_file

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from tokpack.encoding.piece import Job, Piece
    from tokpack.progress import Advance
    from tokpack.sources import Part

SYNC_SECONDS = 2.0
SYNC_BYTES = 256 << 20
_HASH_BYTES = 1 << 30  # at once


def groups_of(parts: Sequence[Part]) -> list[list[int]]:
    """Numbers of the parts that are joined together: the stripes of a source, else a part alone."""
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
    taken: int = 0  # extents joined to their end
    copied: tuple[int, ...] = ()  # bytes of each track that are joined

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
        self._whole = list(self._ends)  # the same at the end of the last whole group
        self._committed = 0  # groups in the journal
        self._unsynced = 0
        self._synced = time.monotonic()
        self._files: list[int] = []
        self._open: dict[int, list[int]] = {}
        # A plan of one part needs no copy: its piece becomes the joined file.
        self._single = len(job.parts) == 1
        self._digests = {track: Digest() for track in job.tracks if track.endswith(".ids")}
        self._beat = beat
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="tokpack-join", daemon=True)

    # -- called by the run ----------------------------------------------------------------------

    def resume(self, known: Container[int]) -> int:
        """Go back to what the journal says. Returns how many parts need no piece any more.

        ``known`` are the parts whose description exists. After a power loss one of these may be
        missing, or a joined file be shorter than the journal says: then nothing is joined.
        """
        journal = self._folder.read_json("journal.json") or {}
        ends = journal.get("ends") or self._ends
        paths = [self._folder.joined(track) for track in self._job.tracks]
        sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in paths]
        covered = sum(len(group) for group in self._groups[: journal.get("groups", 0)])
        if (
            self._single
            or any(size < end for size, end in zip(sizes, ends, strict=True))
            or not all(number in known for number in range(covered))
        ):
            ends, journal, covered = [0] * len(ends), {}, 0
        self._group = self._committed = int(journal.get("groups", 0))
        self._ends, self._whole = list(ends), list(ends)
        for path, end in zip(paths, ends, strict=True):
            if self._single:
                continue
            with cannot_write(path):
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                self._files.append(file)
                os.ftruncate(file, end)
        if not journal:
            self._folder.remove_file("journal.json")
        return covered

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
            self._changed.notify()

    def check(self) -> None:
        """Raise the error that ended the joiner's thread, if any."""
        if self._error is not None:
            raise self._error

    def finish(self) -> dict[str, str]:
        """Wait until all is joined and durable. Returns the xxh3_128 of each track of ids."""
        self._close()
        self.check()
        if self._single:
            for track in self._job.tracks:
                with cannot_write(self._folder.joined(track)):
                    os.replace(self._folder.piece(0, track), self._folder.joined(track))
        return {track: digest.hexdigest() for track, digest in self._digests.items()}

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
                # Asked before joining: whoever closes has announced all that there will be.
                closing = self._closing
                moved = self._join()
                moved |= not self._hash()
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
        """Append all that is known and in order; whether anything moved."""
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
            self._unsynced += end - begin
        return True

    def _open_piece(self, number: int, flags: int) -> list[int]:
        files = []
        for track in self._job.tracks:
            path = self._folder.piece(number, track)
            with cannot_write(path):
                files.append(os.open(path, flags | os.O_CLOEXEC))
        return files

    def _end_group(self, group: list[int]) -> None:
        for number in group:
            for file in self._open.pop(number, []):
                os.close(file)
            self._states.pop(number)
        self._whole = list(self._ends)
        self._group += 1
        self._segment = 0

    def _hash(self) -> bool:
        """Let the checksums follow; whether they did. After a resume they have far to go."""
        there = True
        for index, track in enumerate(self._job.tracks):
            if track in self._digests and self._files:
                file, end = self._files[index], self._ends[index]
                there &= self._digests[track].follow(file, end, _HASH_BYTES)
        return there

    def _sync(self) -> None:
        """Make what is joined durable, enter whole groups in the journal, delete their pieces."""
        for track, file in zip(self._job.tracks, self._files, strict=False):
            with cannot_write(self._folder.joined(track)):
                os.fdatasync(file) if hasattr(os, "fdatasync") else os.fsync(file)
        self._unsynced = 0
        self._synced = time.monotonic()
        if self._group == self._committed or self._single:
            return
        numbers = [n for group in self._groups[self._committed : self._group] for n in group]
        for number in numbers:
            for kind in ("json", "rejects.jsonl"):
                sync_file(self._folder.piece(number, kind))
        self._folder.write_json("journal.json", {"groups": self._group, "ends": self._whole})
        for number in numbers:
            for track in self._job.tracks:
                self._folder.remove_file(os.path.basename(self._folder.piece(number, track)))
        self._committed = self._group

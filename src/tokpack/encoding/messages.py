"""What the run and its workers say to each other: numbers and places, never text or tokens.

A worker does its tasks one after the other, in the order in which they come. Placements it carries
out at once, also in the middle of a task. What happens it reports by events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokpack.encoding.piece import Piece, PieceId, Stored
    from tokpack.errors import RecordError

# -- tasks ------------------------------------------------------------


class EncodePart(NamedTuple):
    """Encode a part; of a stream all segments but those in ``skip``, or ``only`` some.

    ``at`` is where the tracks of its first piece begin in the joined files, where it is known by
    now. ``limit`` is the number of records after which to stop.
    """

    number: int
    at: tuple[int, ...] | None = None
    skip: frozenset[int] = frozenset()
    only: frozenset[int] | None = None
    limit: int | None = None

    def wants(self, segment: int) -> bool:
        """Whether a segment of the stream is to be encoded."""
        return segment not in self.skip if self.only is None else segment in self.only


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


class CopyPiece(NamedTuple):
    """Copy a piece from a spill to its place in the joined files."""

    id: PieceId
    stored: Stored
    sizes: tuple[int, ...]
    begins: tuple[int, ...]


class CheckPiece(NamedTuple):
    """Compare a piece that an earlier run has stored with its checksums."""

    id: PieceId
    stored: Stored
    sizes: tuple[int, ...]


class SharedBlock(NamedTuple):
    """A block of a joined file that several pieces share: (begin, end, sum) of what each has."""

    track: int
    block: int
    parts: tuple[tuple[int, int, bytes], ...]


class SumSharedBlocks(NamedTuple):
    """Take the checksums of blocks that several pieces share."""

    edges: tuple[SharedBlock, ...]


Task = EncodePart | Segment | CopyPiece | CheckPiece | SumSharedBlocks

# -- placements --------------------------------------------------------


class StorePiece(NamedTuple):
    """Write a piece that waits in memory to its place in the joined files."""

    id: PieceId
    begins: tuple[int, ...]


class UseSlot(NamedTuple):
    """Put the next segment of the stream that is being read into a slot, for somebody else."""

    slot: int


Placement = StorePiece | UseSlot
ToWorker = Task | Placement

# -- events ------------------------------------------------------------


class PieceEncoded(NamedTuple):
    """A piece is complete, in memory or stored."""

    piece: Piece


class Unencoded(NamedTuple):
    """A piece has a bad record that ends the run, its first one."""

    id: PieceId
    error: RecordError


class PieceStored(NamedTuple):
    """A piece lies in files now."""

    id: PieceId
    stored: Stored


class PieceCorrupt(NamedTuple):
    """A piece in files is not what was stored there."""

    id: PieceId


class SharedBlockSums(NamedTuple):
    """The checksums of blocks: (track, block, sum)."""

    sums: tuple[tuple[int, int, bytes], ...]


class StreamEnd(NamedTuple):
    """A stream has so many segments; ``blocks`` are the checksums of its file, if all was read."""

    number: int
    segments: int
    blocks: str | None


class SlotFree(NamedTuple):
    """A slot is free again; ``unused`` where nothing was put into it."""

    slot: int
    unused: bool


class TaskDone(NamedTuple):
    """The first task of the worker's queue is done."""


Event = (
    PieceEncoded
    | Unencoded
    | PieceStored
    | PieceCorrupt
    | SharedBlockSums
    | StreamEnd
    | Segment
    | SlotFree
    | TaskDone
)

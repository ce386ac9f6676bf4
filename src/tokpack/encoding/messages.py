"""What the run and its workers say to each other: numbers and places, never tokens, and text only
of an iterable, which the run itself reads.

A worker does its tasks one after the other, in the order in which they come. Two messages it
carries out at once, also in the middle of a task: UseSlot, and StorePiece for a piece that it
holds. What happens it reports by events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokpack.encoding.piece import Piece, PieceId, Stored
    from tokpack.errors import RecordError
    from tokpack.sources import DocumentBatch

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

"""Where pieces lie in the joined files: arithmetic over their sizes, in the order of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.encoding.messages import SharedBlock
from tokpack.errors import OutputError
from tokpack.files import blocks
from tokpack.files.blocks import SUM_BYTES, spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.encoding.piece import Piece, PieceId


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

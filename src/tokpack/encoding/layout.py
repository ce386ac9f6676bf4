"""Where pieces lie in the joined files: arithmetic over their sizes, in the order of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.encoding.messages import SharedBlock
from tokpack.errors import OutputError
from tokpack.files import blocks
from tokpack.files.blocks import SUM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.encoding.piece import PieceId


class PieceLayout:
    """Gives each piece its place as soon as the sizes of all before it are known."""

    def __init__(self, parts: int, tracks: int) -> None:
        self.ends = [0] * tracks  # of what has its place
        self._segments: list[int | None] = [None] * parts
        self._sizes: dict[PieceId, tuple[int, ...]] = {}  # known, but without a place yet
        self._next: PieceId = (0, 0)

    @property
    def next(self) -> PieceId:
        """The first piece without a place."""
        return self._next

    @property
    def complete(self) -> bool:
        """Whether every piece has its place."""
        return self._next[0] == len(self._segments)

    def segments(self, part: int) -> int | None:
        """How many pieces a part has; None where it is not known yet."""
        return self._segments[part]

    def ends_with(self, part: int, segments: int) -> None:
        """A part has so many pieces. OutputError where that contradicts what was said before."""
        known = self._segments[part]
        if known not in (None, segments):
            raise OutputError(
                f"part {part} of the plan had {known} segments and now has {segments}: its input "
                "changes, or the memory fails; run again anew"
            )
        self._segments[part] = segments

    def add(self, piece: PieceId, sizes: Sequence[int]) -> None:
        """Note the sizes of a piece, in bytes by track, that has no place yet."""
        self._sizes[piece] = tuple(sizes)

    def placed(self) -> Iterator[tuple[PieceId, tuple[int, ...]]]:
        """The pieces that can have their place now, with the offsets of their tracks."""
        while not self.complete:
            part, segment = self._next
            if segment == self._segments[part]:
                self._next = part + 1, 0
            elif (sizes := self._sizes.pop(self._next, None)) is not None:
                begins = tuple(self.ends)
                self.ends = [end + size for end, size in zip(begins, sizes, strict=True)]
                piece, self._next = self._next, (part, segment + 1)
                yield piece, begins
            else:
                return


class FileSums:
    """The sums of the blocks of a joined file, from those of the pieces in it."""

    def __init__(self, track: int) -> None:
        self._track = track
        self._sums = bytearray()
        self._shared: dict[int, list[tuple[int, int, bytes]]] = {}  # by block: what is known of it
        self._covered: dict[int, int] = {}  # by block: how many bytes that are
        self._known = 0  # blocks

    def add(self, begin: int, size: int, sums: bytes) -> Iterator[SharedBlock]:
        """Note a piece of ``size`` bytes at ``begin``, whose blocks have these sums.

        Gives the blocks, shared with other pieces, of which all bytes are known by that.
        """
        end, block_bytes = begin + size, blocks.BLOCK_BYTES
        if not size:
            return
        first, stop = -(-begin // block_bytes), end // block_bytes  # its own blocks
        if begin < first * block_bytes:
            head = min(end, first * block_bytes)
            yield from self._share(first - 1, begin, head, sums[:SUM_BYTES])
            sums = sums[SUM_BYTES:]
        if first < stop:
            self.put(first, sums[: (stop - first) * SUM_BYTES])
        if max(first, stop) * block_bytes < end:
            yield from self._share(stop, max(begin, stop * block_bytes), end, sums[-SUM_BYTES:])

    def last(self, size: int) -> Iterator[SharedBlock]:
        """The block in which the file ends, where it ends within one; called once, at the end."""
        block = size // blocks.BLOCK_BYTES
        parts = self._shared.pop(block, None)
        if parts is not None:
            if len(parts) == 1:
                self.put(block, parts[0][2])
            else:
                yield SharedBlock(self._track, block, tuple(sorted(parts)))

    def sums(self, size: int) -> bytes | None:
        """The sums of all blocks of the file, which has ``size`` bytes; None where some lack."""
        if self._known != -(-size // blocks.BLOCK_BYTES) or self._shared:
            return None
        return bytes(self._sums)

    def _share(self, block: int, begin: int, end: int, digest: bytes) -> Iterator[SharedBlock]:
        parts = self._shared.setdefault(block, [])
        parts.append((begin, end, digest))
        self._covered[block] = self._covered.get(block, 0) + end - begin
        if self._covered[block] == blocks.BLOCK_BYTES:
            del self._shared[block], self._covered[block]
            yield SharedBlock(self._track, block, tuple(sorted(parts)))

    def put(self, block: int, sums: bytes) -> None:
        """The sums of a run of whole blocks."""
        at = block * SUM_BYTES
        if at > len(self._sums):
            self._sums.extend(bytes(at - len(self._sums)))
        self._sums[at : at + len(sums)] = sums
        self._known += len(sums) // SUM_BYTES

"""The lengths of a dataset's sequences, read once: what identifies it, and sums of any range."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STEP = 1 << 20  # sequences between two sums that are kept


@dataclass(frozen=True, eq=False)
class LengthSums:
    """Sums of ``lengths`` (int32 [S]) before every STEP-th of them, and of all at the end."""

    lengths: npt.NDArray[np.int32]
    before: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        lengths: npt.NDArray[np.int32],
        look: Callable[[npt.NDArray[np.int32]], object] = lambda chunk: None,
    ) -> LengthSums:
        """Read all lengths once, in constant memory; ``look`` is given them, STEP at a time."""
        sums = [0]
        for start in range(0, len(lengths), STEP):
            chunk = np.ascontiguousarray(lengths[start : start + STEP], "<i4")
            look(chunk)
            sums.append(sums[-1] + int(chunk.sum(dtype=np.int64)))
            release(lengths)
        return cls(lengths, np.array(sums, np.int64))

    def total(self, begin: int, end: int) -> int:
        """Tokens of the sequences [begin, end)."""
        return self._tokens_before(end) - self._tokens_before(begin) if begin < end else 0

    def ending_within(self, tokens: int) -> int:
        """How many sequences, from the first on, end within so many tokens."""
        step = int(np.searchsorted(self.before[1:], tokens, side="right"))
        start = min(step * STEP, len(self.lengths))
        ends = np.cumsum(self.lengths[start : start + STEP], dtype=np.int64)
        return start + int(np.searchsorted(ends, tokens - self.before[step], side="right"))

    def _tokens_before(self, number: int) -> int:
        step = number // STEP
        rest = self.lengths[step * STEP : number]
        return int(self.before[step]) + int(rest.sum(dtype=np.int64))


def by_part(
    starts: Sequence[int] | npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """The parts, of which each goes from one of ``starts`` to the next, that some numbers are in.

    Of each its own number, the places of its numbers among these, and these from its start.
    """
    parts = np.searchsorted(starts, numbers, side="right") - 1
    if len(parts) and parts.min() == parts.max():  # most often
        yield int(parts[0]), np.arange(len(parts)), numbers - starts[parts[0]]
        return
    for part in np.unique(parts).tolist():
        here = np.flatnonzero(parts == part)
        yield part, here, numbers[here] - starts[part]


def numbers_in(
    firsts: npt.NDArray[np.int64], counts: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.int64]:
    """The numbers of ranges, one range after the other: so many from each first one on."""
    before = np.cumsum(counts, dtype=np.int64) - counts
    numbers: npt.NDArray[np.int64] = np.repeat(firsts - before, counts)
    numbers += np.arange(len(numbers))
    return numbers


def document_ends(
    lengths: npt.NDArray[np.int32], doc_idx: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Tokens before each document, and all of them at the end: int64 [documents + 1]."""
    ends = np.zeros(len(doc_idx), np.int64)
    done, at = 0, 0
    for begin in range(0, max(len(lengths), 1), STEP):
        sums = np.cumsum(lengths[begin : begin + STEP], dtype=np.int64)
        stop = int(np.searchsorted(doc_idx, begin + len(sums), side="right"))
        inside = doc_idx[at:stop] - begin
        ends[at:stop] = done + np.concatenate([[0], sums])[inside]
        done += int(sums[-1]) if len(sums) else 0
        at = stop
    return ends


def document_lengths(
    lengths: npt.NDArray[np.int32], doc_idx: npt.NDArray[np.int64]
) -> npt.NDArray[np.signedinteger[Any]]:
    """Tokens of each document, [documents]; ``lengths`` itself where each is one sequence."""
    if len(lengths) == len(doc_idx) - 1 and counts_up(doc_idx):
        return lengths
    return np.diff(document_ends(lengths, doc_idx))


def counts_up(doc_idx: npt.NDArray[np.int64]) -> bool:
    """Whether the entries are 0, 1, 2, ...: every document is one sequence."""
    for begin in range(0, len(doc_idx), STEP):
        part = doc_idx[begin : begin + STEP]
        if not np.array_equal(part, np.arange(begin, begin + len(part))):
            return False
        release(doc_idx)
    return True


def release(array: npt.NDArray[Any]) -> None:
    """Give back the memory of a mapped file's pages; reading them again maps them again."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.obj if isinstance(base, memoryview) else base.base
    # Only for a read-only map of a file: any other memory would lose its contents.
    if isinstance(base, mmap.mmap) and memoryview(base).readonly and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)

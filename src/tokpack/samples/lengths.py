"""Reading all lengths of a dataset without keeping the file that they are mapped from in memory."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 23


def pieces(count: int) -> Iterator[slice]:
    """Parts of ``count`` lengths, in order, after each of which ``release`` may be called."""
    for start in range(0, count, _CHUNK):
        yield slice(start, min(start + _CHUNK, count))


def release(array: npt.NDArray[Any]) -> None:
    """Let go of the memory of a mapped file; what is read again is mapped again."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.obj if isinstance(base, memoryview) else base.base
    # Other memory than that of a file, or a private copy of one, would lose what is in it.
    if isinstance(base, mmap.mmap) and memoryview(base).readonly and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


def total_tokens(lengths: npt.NDArray[np.int32]) -> int:
    """The sum of the lengths."""
    tokens = 0
    for piece in pieces(len(lengths)):
        tokens += int(np.sum(lengths[piece], dtype=np.int64))
        release(lengths)
    return tokens


def has_tokens(lengths: npt.NDArray[np.int32]) -> bool:
    """Whether any length is not 0."""
    return any(lengths[piece].any() for piece in pieces(len(lengths)))

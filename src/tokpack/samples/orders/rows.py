"""Where the tokens of samples lie: what every order gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Numbers = Sequence[int] | npt.NDArray[np.int64]  # of samples

Rows = npt.NDArray[np.int64]  # [k, 3]: sequence, first token in it, number of tokens
Counts = npt.NDArray[np.int64]  # [B]: rows of each sample

_CHUNK = 1 << 16  # samples that a scan locates at a time


def scan(
    locate_many: Callable[[Numbers], tuple[Rows, Counts]], sequences: range, samples: int
) -> Iterator[int]:
    """Which of the first ``samples`` have tokens of ``sequences``, in order.

    It locates every sample, which takes some tenths of a microsecond each: for orders that have no
    inverse.
    """
    for begin in range(0, samples, _CHUNK):
        rows, counts = locate_many(np.arange(begin, min(begin + _CHUNK, samples)))
        inside = (rows[:, 0] >= sequences.start) & (rows[:, 0] < sequences.stop) & (rows[:, 2] > 0)
        owners = np.repeat(np.arange(len(counts)), counts)
        yield from (begin + np.unique(owners[inside])).tolist()

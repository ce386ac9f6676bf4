"""Where the tokens of samples lie: what every order gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Numbers = Sequence[int] | npt.NDArray[np.int64]  # of samples

Rows = npt.NDArray[np.int64]  # [k, 3]: sequence, first token in it, number of tokens
Counts = npt.NDArray[np.int64]  # [B]: rows of each sample


def locate_each(locate: Callable[[int], Rows], samples: Numbers) -> tuple[Rows, Counts]:
    """``locate`` of each sample: all rows, one after the other, and how many each has."""
    found = [locate(int(sample)) for sample in samples]
    counts = np.array([len(rows) for rows in found], np.int64)
    return np.concatenate([np.empty((0, 3), np.int64), *found]), counts

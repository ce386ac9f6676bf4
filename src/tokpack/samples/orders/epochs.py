"""The orders of the epochs that are read now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
KEPT = 2  # one ends while the next begins


class Epochs(Generic[T]):
    """``make(epoch)``, of which the last few are kept. Several threads may ask at once."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._kept: dict[int, T] = {}  # never changed: who reads it is not disturbed

    def __getitem__(self, epoch: int) -> T:
        kept = self._kept
        if epoch not in kept:
            before = list(kept.items())[1 - KEPT :]
            self._kept = kept = {**dict(before), epoch: self._make(epoch)}
        return kept[epoch]

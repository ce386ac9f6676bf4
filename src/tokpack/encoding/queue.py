"""The order in which parts are encoded."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tokpack.sources.compression import COMPRESSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.encoding.piece import Job


class Queue:
    """Gives out parts in the order of the plan, in which pieces get their places.

    The exception is a part that one worker would still be encoding when all others are done: it
    takes longer than an even share of all that is left, so it is given out at once. Of a stream
    only the decompression counts, since other workers encode its segments.
    """

    def __init__(self, job: Job, numbers: Sequence[int], workers: int) -> None:
        self._weights = {number: job.parts[number].weight for number in numbers}
        self._alone = {number: _alone(job, number) for number in numbers}
        self._in_order = deque(numbers)
        self._by_weight = sorted(numbers, key=lambda n: (-self._alone[n], n))
        self._at = 0
        self._left = sum(self._weights.values())
        self._workers = workers

    def __len__(self) -> int:
        return len(self._weights)

    def drop_from(self, number: int) -> None:
        """Give out none of the parts from ``number`` on."""
        for part in [part for part in self._weights if part >= number]:
            self._left -= self._weights.pop(part)

    def take(self) -> int | None:
        """The next part to encode, or None."""
        if not self._weights:
            return None
        while self._by_weight[self._at] not in self._weights:
            self._at += 1
        while self._in_order[0] not in self._weights:
            self._in_order.popleft()
        number = self._by_weight[self._at]
        if self._alone[number] * self._workers <= self._left:
            number = self._in_order.popleft()
        self._left -= self._weights.pop(number)
        return number


def _alone(job: Job, number: int) -> float:
    """The weight of what one worker must do alone of a part."""
    part = job.parts[number]
    if part.kind != "stream":
        return part.weight
    decoding = COMPRESSIONS[job.sources[part.source].compression].decoding
    return part.weight * decoding / (1 + decoding)
